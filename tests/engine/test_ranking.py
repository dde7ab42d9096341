"""Every score of candidates that are read together equals that of the whole text alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from tiny_folder import write_folder

CONTEXT = "abcabcab, and so on: abcabcab"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_folder(tmp_path_factory.mktemp("model"), "llama")
    with LLM(str(folder), decoder=None, limits=Limits(kv_tokens=4096)) as made:
        yield made


def candidates(llm: LLM, count: int = 40) -> list[list[int]]:
    """Return candidates of 1 to 30 tokens, which together need several rounds."""
    random = np.random.default_rng(3)
    return [
        random.integers(0, llm.config.vocab_size, size).tolist()
        for size in random.integers(1, 31, count)
    ]


def test_scores_are_those_of_separate_texts(llm: LLM) -> None:
    ids, given = llm.encode(CONTEXT), candidates(llm)
    ranked = llm.rank(ids, given)
    assert sorted(each.index for each in ranked) == list(range(len(given)))
    for each in ranked:
        tokens = given[each.index]
        (alone,) = llm.score([ids + tokens])
        assert [entry.logprob for entry in alone[-len(tokens) :]] == list(each.logprobs)
        assert each.total == pytest.approx(each.mean * len(tokens))
    means = [each.mean for each in ranked]
    assert means == sorted(means, reverse=True)
    llm.engine.check()
    assert llm.engine.pools["target"].held == 0


def test_other_candidates_and_their_order_change_no_score(llm: LLM) -> None:
    given = candidates(llm, 12)
    all_ = {each.index: each.logprobs for each in llm.rank(CONTEXT, given)}
    backwards = {11 - each.index: each.logprobs for each in llm.rank(CONTEXT, given[::-1])}
    assert backwards == all_
    for place, candidate in enumerate(given):
        (one,) = llm.rank(CONTEXT, [candidate])
        assert one.logprobs == all_[place]


def test_equal_candidates_stay_in_order_and_texts_are_read(llm: LLM) -> None:
    ranked = llm.rank(CONTEXT, ["abc", "abc", "abc"])
    assert [each.index for each in ranked] == [0, 1, 2]


def test_the_context_is_read_once(llm: LLM) -> None:
    before = llm.engine.forwards
    llm.rank(CONTEXT, [[5], [6], [7]])
    assert llm.engine.forwards == before + 1  # One token each: the context says it all.
    llm.rank(CONTEXT, [[5, 6], [6, 7], [7, 8]])
    assert llm.engine.forwards == before + 3


@pytest.mark.parametrize("bad", [
    [], [""], [[]], [[-1]], [[1 << 20]], [[1 << 40]], [[1] * 513], [[1.5]], [[True]], ["a", None],
])  # fmt: skip
def test_candidates_that_cannot_be_ranked(llm: LLM, bad: Any) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        llm.rank(CONTEXT, bad)


def test_a_context_that_leaves_no_room(llm: LLM) -> None:
    with pytest.raises(InvalidInput, match="together"):
        llm.rank([5] * (llm.config.context_length - 2), [[5, 6, 7]])
