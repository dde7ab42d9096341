"""Constraints on a canvas: a token is allowed if the rest of the canvas can still be filled.

The output has n positions, and some of them are decided, in any order. ``ahead[i]`` is the set of
automaton states that some filling of the first i positions leads to. ``back[i]`` is the set of
states from which some filling of the remaining positions reaches an accepting state. A token fits
position i if it leads from a state of ``ahead[i]`` to a state of ``back[i + 1]``. (DINGO, arXiv
2505.23061, finds the most likely filling with the same sets; here the commit policy decides the
order.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.automaton import DEAD, TokenAutomaton
from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import InvalidInput

Tokens = NDArray[np.int32]
Positions = NDArray[np.int64]
Marks = NDArray[np.bool_]
"""A bool array over the positions of a canvas [N], the rows of a view [K], or automaton states."""
Steps = tuple[NDArray[np.int64], NDArray[np.int64]]
Columns = NDArray[np.int64]
NOWHERE: Steps = (np.empty(0, np.int64), np.empty(0, np.int64))
END_IT = "let a token end it (leave out ignore_eos, or give stop_token_ids)"


def rules_of(seq: TokenSequence, length: int, mask_token: int) -> Rules | None:
    """Return the rules of a request's constraint for an output of ``length`` positions.

    Without a constraint the result is None.

    Raises:
        InvalidInput: if the constraint is not an automaton, or no text of at least ``min_tokens``
            and at most ``length`` tokens satisfies it. If no token can end a text, the text must
            have exactly ``length`` tokens, or be one that nothing may follow.
    """
    constraint = seq.constraint
    if constraint is None:
        return None
    if not isinstance(constraint, TokenAutomaton):
        fix = "a canvas needs an explicit automaton: use json_schema, regex or choice"
        raise InvalidInput("constraint", type(constraint).__name__, fix)
    start, least, never = len(seq.tokens), seq.params.min_tokens, [mask_token]
    ends = [token for token in seq.sampler.stop_ids.tolist() if token != mask_token]
    if not ends and constraint.final[0]:
        raise InvalidInput("constraint", "this one", f"its only text is empty: {END_IT}")
    rules = Rules(constraint, ends, start, length, least, never)
    empty = np.zeros(start + length, np.int32)
    if rules.fits(empty, empty == 0):
        return rules
    if not ends:
        fix = f"give another number, no text of the constraint ends there; or {END_IT}"
        raise InvalidInput("max_tokens", length, fix)
    if least and Rules(constraint, ends, start, length, never=never).fits(empty, empty == 0):
        raise InvalidInput("min_tokens", least, "give less: the constraint's texts are shorter")
    raise InvalidInput("max_tokens", length, "give more: no text of the constraint is so short")


class Rules:
    """A constraint's automaton, extended to say which tokens fit a partly filled canvas.

    No answer depends on an earlier one, so copies of a canvas share the object.

    Args:
        automaton: automaton of the constraint.
        ends: token ids that end the text. Only such tokens may follow the first of them.
        start: the canvas position where the output begins.
        length: number of positions that the request may show.
        least: number of positions at the beginning of the output that may not end it.
        never: token ids that are never written, such as the mask token.
    """

    def __init__(
        self,
        automaton: TokenAutomaton,
        ends: Sequence[int],
        start: int,
        length: int,
        least: int = 0,
        never: Sequence[int] = (),
    ) -> None:
        states, columns = automaton.table.shape
        self.start, self.length, self.least = start, length, least if ends else 0
        self.done = states
        # One more state, after the end. Two more columns: one for tokens that are never written,
        # and the last one for tokens that end the text.
        self.table = np.full((states + 1, columns + 2), DEAD, np.int32)
        self.table[:states, :columns] = automaton.table
        self.table[:states, -1][automaton.accepting] = self.done
        self.table[states, -1] = self.done
        self.columns = automaton.columns.copy()
        self.columns[list(never)] = columns
        self.columns[list(ends)] = columns + 1
        if not ends:  # No token marks the end, and what follows the end is not shown.
            self.table[:states][automaton.final] = self.done
            self.table[states] = self.done
        # Columns without a token get no transitions, because nobody could write such a text.
        written = np.bincount(self.columns, minlength=columns + 2) > 0
        written[columns] = False
        self.table[:, ~written] = DEAD
        self.final = np.append(automaton.accepting, True)
        self._any, self._text = self._edges(self.table), self._edges(self.table[:, :-1])
        # Results that the next call reuses, because its canvas differs in a few positions.
        self._moves: dict[int, Steps] = {}
        self._known: tuple[Columns, Marks, Marks] | None = None
        self._fitting: dict[tuple[bytes, bytes, bool], Marks] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Rules:
        return self

    def fits(self, tokens: Tokens, masked: Marks) -> bool:
        """Return whether a canvas (``tokens`` and ``masked`` [N]) can be completed."""
        ahead, back = self._sets(self._output(tokens, masked))
        return bool((ahead[0] & back[0]).any())

    def allowed(self, tokens: Tokens, masked: Marks, positions: Positions) -> Marks:
        """Return bool [K, V]: True for tokens that fit each of ``positions``, decided or not.

        Each position is checked alone: tokens that fit two positions need not fit together.
        """
        ahead, back = self._sets(self._output(tokens, masked))
        fitting = np.ones((len(positions), len(self.columns)), bool)
        known, fresh = self._fitting, dict[tuple[bytes, bytes, bool], Marks]()
        for row, at in zip(fitting, (positions - self.start).tolist(), strict=True):
            if at < self.length:
                key = ahead[at].tobytes(), back[at + 1].tobytes(), at < self.least
                fits = fresh.get(key, known.get(key))
                if fits is None:
                    after = self.table[np.flatnonzero(ahead[at])]
                    fits = ((after != DEAD) & back[at + 1][after]).any(axis=0)
                    fits[-1] &= at >= self.least
                fresh[key] = fits
                row[:] = fits[self.columns]
        self._fitting = fresh
        return fitting

    def together(
        self, tokens: Tokens, masked: Marks, positions: Positions, chosen: Tokens
    ) -> Marks:
        """Return bool [K]: True where a chosen token fits, together with earlier ones that fit."""
        columns = self._output(tokens, masked)
        ahead, back = (sets.copy() for sets in self._sets(columns))
        keep = np.ones(len(positions), bool)
        for index, at in enumerate((positions - self.start).tolist()):
            if at >= self.length:
                continue
            column = int(self.columns[chosen[index]])
            after = self.table[:, column]
            through = ahead[at] & (after != DEAD) & back[at + 1][after]
            early = at < self.least and column == self.table.shape[1] - 1
            keep[index] = through.any() and not early
            if keep[index]:
                columns[at] = column
                self._spread(columns, ahead, at)
                self._spread_back(columns, back, at)
        return keep

    def _output(self, tokens: Tokens, masked: Marks) -> Columns:
        """Return int64 [n]: the automaton column of each output token; :data:`DEAD` for masks."""
        end = min(self.start + self.length, len(tokens))
        known = self.columns[tokens[self.start : end]]
        return np.where(masked[self.start : end], DEAD, known).astype(np.int64)

    def _sets(self, columns: Columns) -> tuple[Marks, Marks]:
        """Return ``ahead`` and ``back``, each bool [n + 1, S].

        Both are computed from the sets of the last canvas where its length is the same.
        """
        if self._known is not None and len(self._known[0]) == len(columns):
            before, ahead, back = self._known
            changed = np.flatnonzero(before != columns).tolist()
            if not changed:
                return ahead, back
            ahead, back = ahead.copy(), back.copy()
            for at in changed:
                self._spread(columns, ahead, at)
            for at in reversed(changed):
                self._spread_back(columns, back, at)
        else:
            ahead = np.zeros((len(columns) + 1, len(self.table)), bool)
            back = np.zeros_like(ahead)
            ahead[0, 0] = True
            back[-1] = self.final
            self._spread(columns, ahead, 0)
            self._spread_back(columns, back, len(columns) - 1)
        self._known = columns.copy(), ahead, back
        return ahead, back

    def _spread(self, columns: Columns, ahead: Marks, first: int) -> None:
        """Update ``ahead`` from position ``first`` to the right, until nothing changes."""
        for at in range(first, len(columns)):
            origins, targets = self._steps(int(columns[at]), at)
            after = np.zeros(len(self.table), bool)
            after[targets[ahead[at][origins]]] = True
            if after.tobytes() == ahead[at + 1].tobytes():
                return
            ahead[at + 1] = after

    def _spread_back(self, columns: Columns, back: Marks, last: int) -> None:
        for at in range(last, -1, -1):
            origins, targets = self._steps(int(columns[at]), at)
            before = np.zeros(len(self.table), bool)
            before[origins[back[at + 1][targets]]] = True
            if before.tobytes() == back[at].tobytes():
                return
            back[at] = before

    def _steps(self, column: int, at: int) -> Steps:
        """Return the state transitions at position ``at`` by ``column``, or at a mask by any
        token.
        """
        if column == DEAD:
            return self._text if at < self.least else self._any
        if at < self.least and column == self.table.shape[1] - 1:
            return NOWHERE
        if column not in self._moves:
            origins = np.flatnonzero(self.table[:, column] != DEAD)
            self._moves[column] = origins, self.table[origins, column].astype(np.int64)
        return self._moves[column]

    def _edges(self, table: NDArray[np.int32]) -> Steps:
        """Return the state transitions by any column of ``table``, without duplicates."""
        origins, through = np.nonzero(table != DEAD)
        pairs = np.unique(origins * len(table) + table[origins, through])
        return pairs // len(table), pairs % len(table)
