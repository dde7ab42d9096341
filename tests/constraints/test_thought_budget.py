"""A budget of reasoning forces the closing mark, and leaves the answer to its own constraint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paradecode.constraints.thoughts import ThoughtBudget
from paradecode.core.errors import DecoderError, InvalidInput

TEXTS = [b"", b"a", b" ", b"<think>", b"</think>", b"</", b"think>", b"<th", b"ink>"]
EOS, A, SPACE, OPEN, CLOSE, HALF, REST, TH, INK = range(len(TEXTS))


def matcher(budget: int, inside: bool = False, close: list[int] | None = None) -> Any:
    own = ThoughtBudget(budget, inside, None, close or [CLOSE], TEXTS.__getitem__, len(TEXTS))
    return own.follow([EOS])


@pytest.mark.parametrize(
    ("inside", "path", "next"),
    [(True, [A, A], [CLOSE]), (True, [A], None), (True, [A, CLOSE, A, A], None),
     (True, [HALF, REST, A], None), (False, [A, A, A], None), (False, [], None),
     (False, [SPACE, OPEN, A, A], [CLOSE]), (False, [TH, INK, A], None),
     (False, [TH, INK, A, A], [CLOSE]), (False, [SPACE] * 9, None), (False, [TH, A, A, A], None),
     (True, [A, A, CLOSE, EOS], None)],
)  # fmt: skip
def test_the_mark_follows_when_the_budget_is_spent(
    inside: bool, path: list[int], next: list[int] | None
) -> None:
    for committed in range(len(path)):
        found = matcher(2, inside)
        found.advance(path[:committed])
        behind = path[committed:]
        mask = found.mask(behind)
        assert (mask if next is None else np.flatnonzero(mask).tolist()) == next
        assert found.forced(behind, 5) == (next or [])
        assert found.allows(behind, CLOSE)
        assert found.allows(behind, A) is (next is None)
        assert not found.complete(behind)


def test_a_mark_of_several_tokens() -> None:
    found = matcher(1, True, [HALF, REST])
    assert found.forced([A], 5) == [HALF, REST]
    assert found.forced([A], 1) == [HALF]
    assert found.forced([A, HALF], 5) == [REST]
    assert found.possible([A, HALF, A, A]) == 2
    assert found.mask([A, A]) is None  # Impossible.
    assert found.mask([A, HALF, REST]) is None  # All may follow.
    found.advance([A, HALF])
    with pytest.raises(DecoderError):
        found.advance([A])


def test_no_budget_is_no_thought() -> None:
    assert matcher(0, True).forced([], 5) == [CLOSE]
    assert matcher(0).forced([OPEN], 5) == [CLOSE]


def test_the_answer_has_its_own_constraint(llm: Any, compiler: Any, eos: Any) -> None:
    inner = {"type": "choice", "value": ["yes", "no"]}
    value = {"budget": 3, "inside": True, "then": inner}
    found = compiler.compile({"type": "thoughts", "value": value}).follow(eos)
    thought = llm.tokenizer.encode(" A b", special=False)
    close = llm.tokenizer.encode("</think>", special=False)
    assert not found.allows(thought[:1], eos[0])  # The answer is missing.
    assert not found.mask([])[eos[0]]
    path = [*(thought * 3)[:3], *close]
    assert found.possible(path) == len(path)
    assert found.forced(path[:3], 99) == close
    yes = llm.tokenizer.encode("yes", special=False)
    assert found.allows(path, yes[0])
    assert not found.allows(path, thought[0])
    found.advance([*path, *yes])
    assert found.complete([])
    unopened = {"type": "thoughts", "value": {**value, "inside": False}}
    assert not compiler.compile(unopened).follow(eos).allows([], thought[0])


def test_an_output_keeps_to_its_budget(llm: Any) -> None:
    constraint = {"type": "thoughts", "value": {"budget": 5, "inside": True}}
    close = llm.tokenizer.encode("</think>", special=False)
    for sampling in ({}, {"temperature": 1.0, "seed": 4}):
        prompt = llm.encode("Think:<think>")
        found = llm.complete([prompt], constraint=constraint, max_tokens=24, **sampling)[0]
        free = llm.complete([prompt], max_tokens=5, **sampling)[0]
        assert found.token_ids[: 5 + len(close)] == free.token_ids + close


@pytest.mark.parametrize(
    "value",
    [None, 5, {"budget": -1}, {"budget": True}, {"budget": "5"}, {"inside": 1}, {"then": []},
     {"more": 1}, {"then": {"type": "thoughts", "value": {}}}, {"then": {"type": "x"}}],
)  # fmt: skip
def test_other_values_are_refused(compiler: Any, value: Any) -> None:
    with pytest.raises(InvalidInput):
        compiler.compile({"type": "thoughts", "value": value})
