"""A token after which no token is allowed raises an error only if the output reaches it."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from languages import VERIFIERS

from paradecode.core.decoder import Reply
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.llm import LLM

MODEL = "paradecode/tiny-autoregressive"
METHODS = [
    "prompt-lookup", "suffix", "jacobi(explore=always)", "draft-model(budget=fixed)",
    "draft-model(width=4,budget=sequoia)", "draft-model(verifier=rsd,budget=fixed)",
    "draft-model(verifier=specinfer,budget=dyspec)", "pearl", "mirror-sd",
]  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, draft_model=MODEL, backend="native", threads=1) as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("stop", [(), ("he",), ("h",)])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_end_as_plain_decoding_does(llm, method, stop, temperature):
    """Drafts end where plain decoding ends.

    The text must be "hello world", and its letter l ends an output.
    """
    (letter,) = llm.encode("l")
    wishes: dict[str, Any] = {
        "max_tokens": 20, "stop": stop, "stop_token_ids": [letter], "temperature": temperature,
        "seed": 1, "constraint": {"type": "regex", "value": "hello world"},
    }  # fmt: skip
    (plain,) = llm.complete(["What is 17"], decoder="greedy", **wishes)
    (made,) = llm.complete(["What is 17"], decoder=method, **wishes)
    assert (made.text, made.token_ids) == (plain.text, plain.token_ids)
    assert (made.finish_reason, str(made.error)) == (plain.finish_reason, str(plain.error))
    assert len(plain.token_ids) == (1 if stop == ("h",) else 2)
    assert plain.finish_reason == ("stop" if stop else "error")


class Until:
    """A constraint's matcher that allows nothing after so many tokens of a path."""

    def __init__(self, most: int) -> None:
        self.most = most

    def mask(self, path: Sequence[int]) -> None:
        if len(path) >= self.most:
            raise InvalidInput("constraint", "this one", "loosen it")

    def allows(self, path: Sequence[int], token: int) -> bool:
        self.mask(path)
        return True


@pytest.mark.parametrize("name", sorted(VERIFIERS.keys() - {"greedy"}))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_is_certain_before_the_end_is_kept(name: str, temperature: float) -> None:
    tree = TokenTree.chain([3, 1, 2, 0])
    values = np.full((5, 4), -60.0, np.float32)
    values[range(5), [3, 1, 2, 0, 1]] = 60.0
    for most in range(6):
        params = SamplingParams(temperature=temperature, seed=5)
        matcher: Any = Until(most)
        seq: Any = SimpleNamespace(sampler=Sampler(params, np.array([1], np.int32), (), matcher))
        if most == 0:
            with pytest.raises(InvalidInput, match="loosen"):
                VERIFIERS[name](seq, tree, Reply(ArrayLogits(values)))
            continue
        verdict = VERIFIERS[name](seq, tree, Reply(ArrayLogits(values)))
        assert verdict.tokens == [3, 1, 2, 0, 1][:most]
        assert verdict.rows == [0, 1, 2, 3, 4][:most]
