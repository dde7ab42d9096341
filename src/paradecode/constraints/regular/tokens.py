"""From bytes to tokens: where each token of a vocabulary leads from each state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradecode.constraints.regular.automaton import byte_automaton, too_large
from paradecode.constraints.regular.expressions import Expression
from paradecode.core.automaton import DEAD, TokenAutomaton

MOST_CELLS = 8_000_000
"""States times columns: 32 MB."""


def token_automaton(expression: Expression, spellings: Sequence[bytes]) -> TokenAutomaton:
    """The automaton of an expression over tokens.

    Args:
        spellings: the bytes of each token id; empty for those that are no text.

    Raises:
        InvalidInput: it is too large, or no text meets it.
    """
    table, accepting = byte_automaton(expression)
    states = len(table)
    # Bytes that lead everywhere alike are one: most tokens then spell alike, too.
    classes, inverse = np.unique(table, axis=1, return_inverse=True)
    alike = bytes(np.ravel(inverse).astype(np.uint8))
    # One entry more, so that a step from no state (-1) leads to no state.
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
                break  # All that begins so is dead.
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
    """Length of the common beginning, at most ``most``."""
    end = min(len(one), len(other), most)
    for at in range(end):
        if one[at] != other[at]:
            return at
    return end
