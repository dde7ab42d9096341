"""Builds the smallest automaton over bytes for a regular expression, and one over tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.constraints.limits import refused
from paradecode.constraints.regular.expressions import (
    Alternation,
    Bytes,
    Concatenation,
    Expression,
    Literal,
    Repeat,
)
from paradecode.core.automaton import DEAD, TokenAutomaton
from paradecode.core.errors import InvalidInput

MOST_STATES = 4000
"""The most states of the deterministic automaton."""
MOST_STEPS = 20_000
"""The most states of the nondeterministic automaton, in which repeats are written out."""
MOST_WORK = 5_000_000
"""The most state visits while the deterministic automaton is built, which take about a second."""
MOST_CELLS_REFINED = 30_000_000
"""The most table entries that are read to merge equivalent states, which takes about a second."""


def too_large() -> InvalidInput:
    fix = "make it smaller: fewer or shorter repeats and strings; a canvas needs it as an automaton"
    return refused("this constraint", fix)


def byte_automaton(expression: Expression) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return next states, int32 [S, 256], and bool [S], True for accepting states.

    State 0 is the start.

    Raises:
        InvalidInput: if the automaton would be too large.
    """
    nfa = _NFA()
    end = nfa.end = nfa.build(expression, nfa.new())
    classes, classes_of = nfa.alphabet()
    start = nfa.closure(0)
    numbers = {start: 0}
    order, table = [start], []
    for states in order:  # The subset construction; ``order`` grows in the loop.
        moves: dict[int, set[int]] = {}
        for state in states:
            for values, target in nfa.moves[state]:
                after = nfa.closure(target)
                nfa.spend(len(classes_of[values]) * (1 + len(after)))
                for each in classes_of[values]:
                    moves.setdefault(each, set()).update(after)
        row = np.full(int(classes.max()) + 1, DEAD, np.int32)
        for each, targets in moves.items():
            key = frozenset(targets)
            if key not in numbers:
                numbers[key] = len(order)
                order.append(key)
            row[each] = numbers[key]
        table.append(row)
        if len(order) > MOST_STATES:
            raise too_large()
    accepting = np.array([end in states for states in order])
    smallest, accepting = _smallest(np.array(table), accepting)
    return np.ascontiguousarray(smallest[:, classes]), accepting


class _NFA:
    """A nondeterministic automaton with empty transitions, made by Thompson's construction."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[frozenset[int], int]]] = []
        self.empty: list[list[int]] = []
        self.work, self.end = 0, -1
        self._closures: dict[int, frozenset[int]] = {}

    def new(self) -> int:
        """Add a state, and return its number."""
        if len(self.moves) >= MOST_STEPS:
            raise too_large()
        self.moves.append([])
        self.empty.append([])
        return len(self.moves) - 1

    def spend(self, work: int) -> None:
        self.work += work
        if self.work > MOST_WORK:
            raise too_large()

    def build(self, part: Expression, start: int) -> int:
        """Add ``part`` after the state ``start``, and return the state after it."""
        self.spend(1)  # Parts without states count, too, as they may be a million.
        if isinstance(part, Bytes):
            end = self.new()
            self.moves[start].append((part.values, end))
            return end
        if isinstance(part, Literal):
            for value in part.value:
                start = self.build(Bytes(frozenset({value})), start)
            return start
        if isinstance(part, Concatenation):
            for inner in part.parts:
                start = self.build(inner, start)
            return start
        if isinstance(part, Alternation):
            end = self.new()
            for inner in part.parts:
                self.empty[self.build(inner, self._after(start))].append(end)
            return end
        return self._repeat(part, start)

    def _repeat(self, part: Repeat, start: int) -> int:
        for _ in range(part.least):
            start = self.build(part.part, start)
        end = self.new()
        if part.most is None:
            loop = self._after(start)
            self.empty[self.build(part.part, loop)].append(loop)
            self.empty[loop].append(end)
            return end
        for _ in range(part.most - part.least):
            self.empty[start].append(end)
            start = self.build(part.part, self._after(start))
        self.empty[start].append(end)
        return end

    def _after(self, state: int) -> int:
        """Return a new state after ``state``. A loop that begins there cannot reach ``state``."""
        new = self.new()
        self.empty[state].append(new)
        return new

    def alphabet(self) -> tuple[NDArray[np.int64], dict[frozenset[int], list[int]]]:
        """Return each byte's class, int64 [256], and the classes of each set of bytes.

        Bytes of one class occur in the same transitions.
        """
        sets = {values for moves in self.moves for values, _ in moves}
        member = np.zeros((256, max(len(sets), 1)), bool)
        for column, values in enumerate(sets):
            member[list(values), column] = True
        classes = np.unique(member, axis=0, return_inverse=True)[1].ravel()
        return classes, {values: np.unique(classes[list(values)]).tolist() for values in sets}

    def closure(self, state: int) -> frozenset[int]:
        """Return the states that empty transitions reach from ``state``.

        Only the end and states with transitions by bytes are returned.
        """
        if state not in self._closures:
            seen, todo = {state}, [state]
            while todo:
                for after in self.empty[todo.pop()]:
                    if after not in seen:
                        seen.add(after)
                        todo.append(after)
            self.spend(len(seen))
            self._closures[state] = frozenset(s for s in seen if self.moves[s] or s == self.end)
        return self._closures[state]


def _smallest(
    table: NDArray[np.int32], accepting: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Merge equivalent states; return the table and the accepting states. State 0 is the start.

    This is Moore's partition refinement. The first partition is by the distance to the next
    accepting state and to the next state that does not accept. It separates most states of a long
    chain, so few rounds are left.
    """
    # Row -1 is the dead state, which does not accept.
    steps = np.vstack([table, np.full((1, table.shape[1]), DEAD, np.int32)])
    ends = np.append(accepting, False)
    groups = np.unique([_distance(steps, ends), _distance(steps, ~ends)], axis=1,
                       return_inverse=True)[1].ravel()[:-1]  # fmt: skip
    count, rounds = len(np.unique(groups)), 0
    while True:
        rounds += 1
        if rounds * table.size > MOST_CELLS_REFINED:
            raise too_large()
        after = np.where(table == DEAD, DEAD, groups[table])
        rows = np.ascontiguousarray(np.column_stack([groups, after]))
        whole = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
        groups = np.unique(whole, return_inverse=True)[1].ravel()
        before, count = count, int(groups.max()) + 1
        if count == before:
            break
    _, first = np.unique(groups, return_index=True)
    order = [int(groups[0]), *(g for g in range(len(first)) if g != groups[0])]
    rank = np.empty(len(first), np.int64)
    rank[order] = np.arange(len(first))
    kept = first[order]
    merged = np.where(table[kept] == DEAD, DEAD, rank[groups[table[kept]]])
    return merged.astype(np.int32), accepting[kept]


def _distance(steps: NDArray[np.int32], goals: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64 [S]: the fewest bytes from each state to one of ``goals``, or -1."""
    found = np.where(goals, 0, -1)
    while True:
        known = found >= 0
        new = ~known & known[steps].any(axis=1)
        if not new.any():
            return found
        found[new] = found.max() + 1


MOST_CELLS = 8_000_000
"""The most entries (states times columns) of the table, which take 32 MB."""


def token_automaton(expression: Expression, spellings: Sequence[bytes]) -> TokenAutomaton:
    """Return the automaton over tokens of a regular expression.

    Args:
        spellings: the bytes of each token id; empty for ids that are not text.

    Raises:
        InvalidInput: if the automaton is too large, or no text matches.
    """
    table, accepting = byte_automaton(expression)
    states = len(table)
    # Bytes with equal columns are replaced by one byte, so that many tokens become equal.
    classes, inverse = np.unique(table, axis=1, return_inverse=True)
    alike = bytes(np.ravel(inverse).astype(np.uint8))
    # An extra entry at the end lets a step from the dead state (-1) lead to the dead state.
    steps = [np.append(column, np.int32(DEAD)) for column in classes.T]
    tokens: dict[bytes, list[int]] = {}
    for token, spelled in enumerate(spellings):
        if spelled:
            tokens.setdefault(spelled.translate(alike), []).append(token)
    nowhere = np.full(states, DEAD, np.int32)
    numbers, found = {nowhere.tobytes(): 0}, [nowhere]
    columns = np.zeros(len(spellings), np.int32)
    stack = [np.arange(states, dtype=np.int32)]
    before = b""
    for spelled in sorted(tokens):
        del stack[_shared(before, spelled, len(stack) - 1) + 1 :]
        before = spelled
        for value in spelled[len(stack) - 1 :]:
            if stack[-1] is nowhere:
                break  # No token with this beginning is allowed.
            after = steps[value][stack[-1]]
            stack.append(after if (after != DEAD).any() else nowhere)
        key = stack[-1].tobytes()
        if key not in numbers:
            numbers[key] = len(found)
            found.append(stack[-1])
            if len(found) * states > MOST_CELLS:
                raise too_large()
        columns[tokens[spelled]] = numbers[key]
    return TokenAutomaton(np.ascontiguousarray(np.array(found).T), columns, accepting)


def _shared(one: bytes, other: bytes, most: int) -> int:
    """Return the length of the common prefix of two byte strings, at most ``most``."""
    end = min(len(one), len(other), most)
    for at in range(end):
        if one[at] != other[at]:
            return at
    return end
