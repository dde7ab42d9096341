"""Constraints as explicit automata over tokens: a table has the next state for each token."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError, InvalidInput

DEAD = -1
"""The state id that means "no next state": the token is forbidden."""


class TokenAutomaton:
    """A deterministic finite automaton over token ids; state 0 is the start.

    Tokens with the same next state in every state share a *column*. Transitions to states from
    which no accepting state can be reached are removed, so the text can be completed after every
    allowed token.

    Args:
        table: int32 [S, C], the next state for each state and column, or :data:`DEAD`.
        columns: int32 [V], the column of each token.
        accepting: bool [S], the states in which the text is complete.

    Raises:
        InvalidInput: if no text is accepted.
    """

    waits = False

    def __init__(
        self, table: NDArray[np.int32], columns: NDArray[np.int32], accepting: NDArray[np.bool_]
    ) -> None:
        useful = _completable(table, accepting)
        if not useful[0]:
            raise InvalidInput("constraint", "this one", "no text meets it; loosen it")
        self.table = np.where((table != DEAD) & useful[table], table, DEAD).astype(np.int32)
        self.columns, self.accepting = columns, accepting
        self.states, self.vocab_size = len(table), len(columns)
        self.final = accepting & (self.table == DEAD).all(axis=1)
        """Bool [S]: True where the text is complete in a state and no token may follow."""

    @classmethod
    def of(
        cls, steps: Sequence[Mapping[int, int]], accepting: Collection[int], vocab_size: int
    ) -> TokenAutomaton:
        """Build the automaton from one mapping per state: token id -> next state."""
        table = np.full((len(steps), vocab_size), DEAD, np.int32)
        for state, step in enumerate(steps):
            for token, after in step.items():
                table[state, token] = after
        accepts = np.isin(np.arange(len(steps)), list(accepting))
        return cls(table, np.arange(vocab_size, dtype=np.int32), accepts)

    def step(self, state: int, token: int) -> int:
        """Return the state after ``token`` in ``state``, or :data:`DEAD` if it is forbidden."""
        inside = state != DEAD and 0 <= token < self.vocab_size
        return int(self.table[state, self.columns[token]]) if inside else DEAD

    def follow(self, ends: Sequence[int]) -> AutomatonMatcher:
        """Return a matcher at the start of an output; the tokens ``ends`` may only end the text.

        Raises:
            InvalidInput: if every text that the constraint accepts has one of ``ends`` before its
                end.
        """
        known = [token for token in ends if 0 <= token < self.vocab_size]
        inside = [token for token in known if (self.table[:, self.columns[token]] != DEAD).any()]
        if not inside:
            return AutomatonMatcher(self, ends)
        columns, nowhere = self.columns.copy(), np.full((self.states, 1), DEAD, np.int32)
        columns[inside] = self.table.shape[1]
        used, columns = np.unique(columns, return_inverse=True)  # Drop columns without tokens.
        table = np.hstack([self.table, nowhere])[:, used]
        try:
            rest = TokenAutomaton(table, columns.astype(np.int32), self.accepting)
        except InvalidInput:
            fix = "leave out those that every text of the constraint has"
            raise InvalidInput("stop_token_ids", inside, fix) from None
        return AutomatonMatcher(rest, ends)


class AutomatonMatcher:
    """A matcher (see :class:`paradecode.core.constraint.Matcher`) over an automaton's states."""

    def __init__(self, automaton: TokenAutomaton, ends: Sequence[int]) -> None:
        self._automaton, self._ends = automaton, np.array(sorted(ends), np.int32)
        self._state = 0

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        state = self._behind(path)
        if state == DEAD:
            return None
        allowed: NDArray[np.bool_] = (self._automaton.table[state] != DEAD)[self._automaton.columns]
        allowed[self._ends] = self._automaton.accepting[state]
        return allowed if allowed.any() else None  # The text is complete, and no token can end it.

    def allows(self, path: Sequence[int], token: int) -> bool:
        state = self._behind(path)
        if state == DEAD:
            return True
        if token in self._ends:
            return bool(self._automaton.accepting[state])
        return self._automaton.step(state, token) != DEAD

    def possible(self, path: Sequence[int]) -> int:
        state = self._state
        for count, token in enumerate(path):
            state = DEAD if token in self._ends else self._automaton.step(state, token)
            if state == DEAD:
                return count
        return len(path)

    def forced(self, path: Sequence[int], limit: int) -> list[int]:
        found: list[int] = []
        state = self._behind(path)
        while state != DEAD and len(found) < limit and not self._automaton.accepting[state]:
            tokens = np.flatnonzero((self._automaton.table[state] != DEAD)[self._automaton.columns])
            if len(tokens) != 1 or tokens[0] in self._ends:
                break
            found.append(int(tokens[0]))
            state = self._automaton.step(state, found[-1])
        return found

    def complete(self, path: Sequence[int]) -> bool:
        state = self._behind(path)
        return state != DEAD and bool(self._automaton.final[state])

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self.allows((), token):
                raise DecoderError(f"token {token} was committed, which the constraint forbids")
            if token not in self._ends:
                self._state = self._automaton.step(self._state, token)

    def _behind(self, path: Sequence[int]) -> int:
        state = self._state
        for token in path:
            state = DEAD if token in self._ends else self._automaton.step(state, token)
        return state


def _completable(table: NDArray[np.int32], accepting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [S]: True for states from which an accepting state can be reached."""
    useful = accepting.copy()
    while True:
        more = useful | ((table != DEAD) & useful[table]).any(axis=1)
        if (more == useful).all():
            return useful
        useful = more
