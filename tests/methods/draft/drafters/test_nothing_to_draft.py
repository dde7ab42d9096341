"""Tests that a request goes on without a draft where the draft model cannot propose a token."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from drafting import Request
from paradecode.core.logits import ArrayLogits
from paradecode.llm import LLM
from paradecode.methods.draft.candidates import candidates
from paradecode_lab.training.ngrams.counting import count_ngrams

MODEL = "paradecode/tiny-autoregressive"
QUESTION = "What is 17 + 25?"
LOOP = "red blue green red blue green red blue"
CHOICE = {"type": "choice", "value": ["red", "blue", "green"]}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Return an engine whose draft model has few of the target's tokens."""
    table = tmp_path_factory.mktemp("few") / "t"
    count_ngrams([[*range(395, 415)]] * 12, 552).save(table)
    with LLM(MODEL, draft_model=MODEL, draft_vocabulary=table, backend="native", threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, draft_model=MODEL, backend="native", threads=1) as made:
        yield made


def test_each_path_has_its_own_scale() -> None:
    """Each path is normalised apart, because scores at a low temperature differ by millions."""
    seq: Any = Request(temperature=1e-4, seed=1)
    values = np.full((3, 32), -400.0, np.float32)
    values[0, :4], values[1, :4], values[2] = 3.0, -380.0, -np.inf
    _, ids, chances = candidates(seq, ArrayLogits(values), [[], [1], [2]], 8, None)
    assert ids[0, 0] < 4
    assert ids[1, 0] < 4
    assert chances.sum(axis=1) == pytest.approx([1.0, 1.0, 0.0])


@pytest.mark.first(2)
@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 0.01])
@pytest.mark.parametrize("method", [
    "draft-model(width=4,budget=fixed)", "layer-skip(width=4,budget=fixed)", "swift(budget=fixed)",
    "s2d(exits='2 4',budget=fixed)",
])  # fmt: skip
def test_low_temperatures(llm: LLM, method: str, temperature: float) -> None:
    for seed in range(3):
        wishes: dict[str, Any] = {
            "temperature": temperature, "seed": seed, "max_tokens": 16, "ignore_eos": True,
        }  # fmt: skip
        plain = llm.complete([LOOP, QUESTION], decoder="greedy", **wishes)
        made = llm.complete([LOOP, QUESTION], decoder=method, **wishes)
        assert [one.error for one in made] == [None, None]
        assert [one.token_ids for one in made] == [one.token_ids for one in plain]


@pytest.mark.first(4)
@pytest.mark.parametrize("method", [
    "draft-model(budget=fixed)", "draft-model(width=16,budget=fixed)", "pearl", "mirror-sd", "s2d",
    "draft-model(verifier=rsd,budget=fixed)", "draft-model(verifier=specinfer,budget=dyspec)",
    "draft-model(verifier=specinfer,budget=stochastic-beam)", "s2d(verifier=block,budget=fixed)",
])  # fmt: skip
def test_a_draft_model_that_says_none_of_the_tokens_that_may_follow(few: LLM, method: str) -> None:
    for seed in range(4):
        wishes: dict[str, Any] = {
            "temperature": 0.7, "seed": seed, "max_tokens": 20, "constraint": CHOICE,
        }  # fmt: skip
        made = few.complete(QUESTION, decoder=method, **wishes)
        assert made.error is None
        assert made.text in CHOICE["value"]
        if "verifier" not in method:
            assert made.token_ids == few.complete(QUESTION, decoder="greedy", **wishes).token_ids


@pytest.mark.parametrize("method", ["stand(verifier=rsd)", "stand(verifier=block,budget=fixed)"])
def test_stored_distributions_at_low_temperatures(llm: LLM, method: str) -> None:
    for seed in range(4):
        made = llm.complete(
            LOOP, decoder=method, temperature=1e-3, seed=seed, max_tokens=24, ignore_eos=True
        )
        assert made.error is None
        assert made.stats.drafted > 0
