"""Bounds the reasoning in an output: after a budget of tokens, the closing tag is forced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradecode.constraints.limits import refused
from paradecode.core.constraint import Constraint, Matcher
from paradecode.core.errors import DecoderError

OPEN, CLOSE = b"<think>", b"</think>"
OPENING = re.compile(rb"\s*<think>")
UNBOUNDED = 1 << 30
BEFORE, INSIDE, BEHIND, NOWHERE = range(4)


class ThoughtPlace(NamedTuple):
    """The state of an output: before, inside or after its reasoning, or forbidden.

    Attributes:
        phase: BEFORE, INSIDE, BEHIND, or NOWHERE for a forbidden output.
        spent: number of tokens inside the reasoning.
        end: the last bytes of the output, as far as they may belong to a tag.
    """

    phase: int
    spent: int = 0
    end: bytes = b""


class ThoughtBudget:
    """A constraint (:class:`paradecode.core.constraint.Constraint`) for outputs that may reason.

    Args:
        budget: the most tokens between the tags.
        inside: True if the prompt has opened the reasoning. If False, an output reasons if it
            begins with the opening tag.
        then: constraint on the output after the reasoning, or None. If no reasoning is open, it
            applies to the whole output.
        close: token ids of the closing tag.
        spelled: returns the bytes of a token.
        vocab_size: number of rows of the model's LM head.
    """

    def __init__(
        self,
        budget: int,
        inside: bool,
        then: Constraint | None,
        close: Sequence[int],
        spelled: Callable[[int], bytes],
        vocab_size: int,
    ) -> None:
        self.budget, self.then, self.close, self.spelled = budget, then, tuple(close), spelled
        self.vocab_size, self.waits = vocab_size, then is not None and then.waits
        self.start = ThoughtPlace(INSIDE if inside else BEFORE if then is None else BEHIND)

    def follow(self, ends: Sequence[int]) -> ThoughtMatcher:
        return ThoughtMatcher(self, ends)

    def step(self, place: ThoughtPlace, token: int) -> ThoughtPlace:
        """Return the state after one more token, which must not be a token that ends the output."""
        if place.phase == INSIDE and place.spent >= self.budget:
            done = place.spent - self.budget
            if token != self.close[done]:
                return ThoughtPlace(NOWHERE)
            last = done + 1 == len(self.close)
            return ThoughtPlace(BEHIND) if last else place._replace(spent=place.spent + 1)
        end = place.end + self.spelled(token)
        if place.phase == INSIDE:
            if CLOSE in end:
                return ThoughtPlace(BEHIND)
            return ThoughtPlace(INSIDE, place.spent + 1, end[1 - len(CLOSE) :])
        if OPENING.match(end):
            return ThoughtPlace(INSIDE)
        begun = OPEN.startswith(end.lstrip())
        return ThoughtPlace(BEFORE, 0, end.lstrip()) if begun else ThoughtPlace(BEHIND)


class ThoughtMatcher:
    """A matcher (see :class:`paradecode.core.constraint.Matcher`) that bounds reasoning."""

    def __init__(self, constraint: ThoughtBudget, ends: Sequence[int]) -> None:
        self._constraint, self._place = constraint, constraint.start
        then = constraint.then
        self._then: Matcher | None = None if then is None else then.follow(ends)
        self._ends = frozenset(ends)
        self._end_ids = np.array(sorted(self._ends), np.int64)

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        place, read = self._behind(path)
        if place.phase == BEHIND:
            return None if self._then is None else self._then.mask(path[read:])
        if place.phase != INSIDE:
            return None
        forced = place.spent >= self._constraint.budget
        if not forced and self._then is None:
            return None
        allowed = np.full(self._constraint.vocab_size, not forced)
        if forced:
            allowed[self._next(place)[0]] = True
        else:
            allowed[self._end_ids] = False
        return allowed

    def allows(self, path: Sequence[int], token: int) -> bool:
        place, read = self._behind(path)
        if place.phase == BEHIND:
            return self._then is None or self._then.allows(path[read:], token)
        if place.phase != INSIDE:
            return True
        if place.spent >= self._constraint.budget:
            return token == self._next(place)[0]
        return self._then is None or token not in self._ends

    def possible(self, path: Sequence[int]) -> int:
        place = self._place
        for count, token in enumerate(path):
            if place.phase == BEHIND and self._then is not None:
                return count + self._then.possible(path[count:])
            place = self._step(place, token)
            if place.phase == NOWHERE:
                return count
        return len(path)

    def forced(self, path: Sequence[int], limit: int) -> list[int]:
        place, read = self._behind(path)
        if place.phase == BEHIND and self._then is not None:
            return self._then.forced(path[read:], limit)
        if place.phase != INSIDE or place.spent < self._constraint.budget:
            return []
        return self._next(place)[: max(limit, 0)]

    def complete(self, path: Sequence[int]) -> bool:
        place, read = self._behind(path)
        return place.phase == BEHIND and self._then is not None and self._then.complete(path[read:])

    def advance(self, tokens: Sequence[int]) -> None:
        for number, token in enumerate(tokens):
            if self._place.phase == BEHIND:
                if self._then is not None:
                    self._then.advance(tokens[number:])
                return
            if not self.allows((), token):
                raise DecoderError(f"token {token} was committed, which the constraint forbids")
            if token not in self._ends:
                self._place = self._constraint.step(self._place, token)

    def _next(self, place: ThoughtPlace) -> list[int]:
        """Return the tokens of the closing tag that must still come."""
        return [*self._constraint.close[place.spent - self._constraint.budget :]]

    def _step(self, place: ThoughtPlace, token: int) -> ThoughtPlace:
        if token in self._ends:
            return ThoughtPlace(NOWHERE)
        return place if place.phase == BEHIND else self._constraint.step(place, token)

    def _behind(self, path: Sequence[int]) -> tuple[ThoughtPlace, int]:
        """Return the state after ``path``, and the number of its tokens before the answer."""
        place = self._place
        for count, token in enumerate(path):
            if place.phase in (BEHIND, NOWHERE) and self._then is not None:
                return place, count
            place = self._step(place, token)
        return place, len(path)


def parts(value: object) -> tuple[int, bool, Mapping[str, object] | None]:
    """Return the budget, ``inside`` and the inner constraint from a constraint's value.

    Raises:
        InvalidInput: if the value has another form.
    """
    known = {"budget", "inside", "then"}
    if not isinstance(value, Mapping) or not value.keys() <= known:
        raise refused(value, 'give {"budget": tokens, "inside": true or false, "then": constraint}')
    budget, inside, then = (value.get(name) for name in ("budget", "inside", "then"))
    budget = UNBOUNDED if budget is None else budget
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise refused(budget, "give a budget of 0 tokens or more")
    if not isinstance(inside, (bool, type(None))) or not isinstance(then, (Mapping, type(None))):
        raise refused(value, "inside is true or false, and then a constraint")
    return min(budget, UNBOUNDED), bool(inside), then
