"""Every score of a read prompt equals the score that decoding reports, whatever is cached."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.engine import prompt as reading
from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from paradecode.models.catalogue import open_model
from tiny_folder import write_folder

TEXT = "abcabcab, and so on: abcabcab abcabcab abcabcab"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), decoder=None, limits=Limits(kv_tokens=4096)) as made:
        yield made


def decoded(llm: LLM, ids: list[int]) -> list[float]:
    """Return the log-probability of each token but the first, from one decoding step each."""
    vocabulary = min(20, llm.config.vocab_size)
    found = []
    for end in range(1, len(ids)):
        bias = {ids[end]: 100.0}
        out = llm.complete([ids[:end]], max_tokens=1, logprobs=vocabulary, logit_bias=bias)[0]
        assert out.token_ids == [ids[end]]
        found.append(out.logprobs[0].logprob)
    return found


def test_scores_equal_those_of_decoding(llm: LLM) -> None:
    ids = llm.encode(TEXT)
    (scored,) = llm.score([ids], top=3)
    assert [entry.token for entry in scored] == ids[1:]
    assert [entry.logprob for entry in scored] == decoded(llm, ids)
    for entry in scored:
        values = [value for _, value in entry.top]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert entry.logprob <= values[0]
        assert dict(entry.top).get(entry.token, entry.logprob) == entry.logprob


def test_the_cache_and_neighbours_change_nothing(llm, monkeypatch, folder):
    with LLM(str(folder), decoder=None, limits=Limits(prefix_cache=False)) as cold:
        (plain,) = cold.score([TEXT])
        alone = cold.embed([TEXT])
    for rows in (7, 16, 128):
        monkeypatch.setattr(reading, "ROWS", rows)
        llm.complete([TEXT + "!"], max_tokens=4)  # Its pages are in the cache now.
        together = llm.score([TEXT, "b", TEXT + "abc", TEXT])
        assert together[0] == together[3] == plain
        assert together[1] == []
        assert together[2][: len(plain) - 1] == plain[:-1]
        np.testing.assert_allclose(llm.embed(["x", TEXT])[1:], alone, atol=1e-6)


def test_embeddings_are_means_of_the_last_states(llm: LLM, folder: Path) -> None:
    """The sum of last hidden states of a prompt grows by one row's state with each token."""
    short, long = llm.encode(TEXT)[:-1], llm.encode(TEXT)
    first, second = (llm.reading(ids, hidden=True) for ids in (short, long))
    llm._read([first, second])
    assert isinstance(first.decoder, reading.PromptReader)
    assert isinstance(second.decoder, reading.PromptReader)
    row = second.decoder.mean * len(long) - first.decoder.mean * len(short)
    # The LM head applied to the state after the final norm predicts the next token.
    weights = open_model(str(folder)).weights
    head = weights.get("head", weights["embed"]).float32()
    logits = head @ row
    best = llm.complete([long], max_tokens=1, temperature=0)[0].token_ids[0]
    assert int(np.argmax(logits)) == best
    assert np.linalg.norm(llm.embed([TEXT])) == pytest.approx(1)


def test_a_prompt_may_fill_the_context() -> None:
    with LLM("paradecode/tiny-autoregressive") as llm:
        most = llm.config.context_length
        ids = [3 + i % 90 for i in range(most)]
        whole, shorter = llm.score([ids, ids[:-1]])
        assert [entry.logprob for entry in whole[:-1]] == [entry.logprob for entry in shorter]
        assert len(whole) == most - 1
        assert llm.embed([ids]).shape == (1, llm.config.hidden_size)
        assert llm.embed([]).shape == (0, llm.config.hidden_size)
        for call in (lambda: llm.score([[*ids, 3]]), lambda: llm.complete([ids], max_tokens=1)):
            with pytest.raises(InvalidInput, match=f"context has {most}"):
                call()


def test_what_is_no_list_of_prompts(llm: LLM) -> None:
    bad: list[Any] = ["hello", b"hello", None, 5]
    for value in bad:
        for call in (llm.score, llm.embed):
            with pytest.raises(InvalidInput, match="prompts"):
                call(value)
    for value in (None, b"abc", 5, {"a": 1}):
        for single in (llm.stream, lambda given: llm.complete(["a", given])):
            with pytest.raises(InvalidInput, match=r"prompt|messages"):
                list(single(value))
    for value in ([1, 2, 3], np.array([1, 2, 3])):
        assert list(llm.stream(value, max_tokens=1))
    with pytest.raises(InvalidInput, match="candidates"):
        llm.rank("red", "blue")
    for top in (1.5, True, None, -1):
        with pytest.raises(InvalidInput, match="top"):
            llm.score(["red"], top=top)  # type: ignore[arg-type]
    for params in ({"max_tokens": 3}, False, 3):
        with pytest.raises(InvalidInput, match="params"):
            llm.complete("red", params)  # type: ignore[call-overload]


@pytest.mark.parametrize(("field", "value"), [
    ("limits", {"batch": 1}), ("threads", "2"), ("threads", 1.5), ("threads", True), ("threads", 0),
])  # fmt: skip
def test_what_no_model_is_opened_with(folder: Path, field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        LLM(str(folder), **{field: value})


def test_what_cannot_be_read(llm: LLM) -> None:
    with pytest.raises(InvalidInput, match="prompt"):
        llm.score([[]])
    with pytest.raises(InvalidInput, match="token ids"):
        llm.score([[llm.config.vocab_size]])
    with LLM("paradecode/tiny-diffusion") as canvas, pytest.raises(InvalidInput, match="read"):
        canvas.embed(["a"])


def test_reading_leaves_nothing_behind(llm: LLM) -> None:
    llm.score([TEXT])
    llm.engine.check()
    assert [pool.held for pool in llm.engine.pools.values()] == [0]
