"""A monitor as a constraint: what it says of the text, turned into masks over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.monitor import Monitor

Names = tuple[bytes, ...]
"""What is left of the names that may follow; an empty one says that a name may be complete."""
FREE: Names = ()
"""No name has been begun, or nothing is known of it."""


class MonitoredText:
    """A constraint that a monitor watches over.

    Args:
        monitor: whose rules hold.
        spellings: the bytes of each token id; empty for those that are no text.
        before: the text that the output goes on with.
    """

    def __init__(self, monitor: Monitor, spellings: Sequence[bytes], before: bytes = b"") -> None:
        self.monitor, self.spellings, self.before = monitor, spellings, before
        triggers = [bytes([value]) for value in monitor.triggers]
        # Tokens in which a name begins: the only ones that need a look while none has been begun.
        self.beginning = np.array(
            [
                token
                for token, text in enumerate(spellings)
                if any(trigger in text[:-1] for trigger in triggers)
            ],
            np.int64,
        )
        self.text = np.array([len(text) > 0 for text in spellings], bool)
        self._by_first: dict[int, list[int]] = {}
        for token, text in enumerate(spellings):
            if text:
                self._by_first.setdefault(text[0], []).append(token)
        self._names = lru_cache(maxsize=64)(self._ask)

    @property
    def vocab_size(self) -> int:
        return len(self.spellings)

    def follow(self, ends: Sequence[int]) -> MonitorMatcher:
        return MonitorMatcher(self, ends)

    def begin(self) -> Names:
        """What may follow the text before the output, which may end within a name."""
        start = len(self.before)
        while start and not self.monitor.ends(self.before[start - 1]):
            start -= 1
        if not start or self.before[start - 1] not in self.monitor.triggers:
            return FREE
        known = self._names(self.before[:start])
        return self.read(self.before[:start], known, self.before[start:]) or FREE

    def read(self, text: bytes, names: Names, piece: bytes) -> Names | None:
        """What may follow once ``piece`` is added; None if the monitor forbids it.

        Args:
            text: so far; ``names`` is what may follow it.
        """
        for at, value in enumerate(piece):
            if names:
                if not self.monitor.ends(value):
                    names = tuple(name[1:] for name in names if name[:1] == bytes([value]))
                    if not names:
                        return None
                    continue
                if b"" not in names:
                    return None
            names = FREE
            if value in self.monitor.triggers:
                names = self._names(text + piece[: at + 1])
        return names

    def allowed(self, text: bytes, names: Names) -> NDArray[np.bool_]:
        """bool [V]: the tokens that may follow ``text``."""
        if not names:
            mask, tokens = self.text.copy(), self.beginning.tolist()
        else:
            mask = np.zeros(self.vocab_size, bool)
            ended = b"" in names
            first = {name[0] for name in names if name}
            first |= {value for value in self._by_first if ended and self.monitor.ends(value)}
            tokens = [token for value in first for token in self._by_first.get(value, ())]
        for token in tokens:
            mask[token] = self.read(text, names, self.spellings[token]) is not None
        return mask

    def _ask(self, text: bytes) -> Names:
        return tuple(self.monitor.names(text) or FREE)


class MonitorMatcher:
    """Implements :class:`paradecode.core.constraint.Matcher`.

    The text and what may follow it are remembered for each path since the last commit, so going
    back is looking up, and the monitor is asked about a draft only as far as it is read.
    """

    def __init__(self, constraint: MonitoredText, ends: Sequence[int]) -> None:
        self._constraint, self._ends = constraint, frozenset(ends)
        self._end_ids = np.array(sorted(ends), np.int32)
        self._text, self._names = constraint.before, constraint.begin()
        self._known: dict[tuple[int, ...], tuple[bytes, Names] | None] = {}

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        place = self._place(path)
        if place is None:
            return None
        allowed = self._constraint.allowed(*place)
        allowed[self._end_ids] = _complete(place[1])
        if not allowed.any():
            fix = "loosen it: this model's tokens cannot spell what may follow"
            raise InvalidInput("constraint", "python", fix)
        return allowed

    def allows(self, path: Sequence[int], token: int) -> bool:
        place = self._place(path)
        if place is None:
            return True
        if token in self._ends:
            return _complete(place[1])
        return self._place((*path, token)) is not None

    def possible(self, path: Sequence[int]) -> int:
        for count in range(len(path)):
            if self._place(path[: count + 1]) is None:
                return count
        return len(path)

    def forced(self, path: Sequence[int], limit: int) -> list[int]:
        return []

    def complete(self, path: Sequence[int]) -> bool:
        return False

    def advance(self, tokens: Sequence[int]) -> None:
        text = [*tokens]
        if text and text[-1] in self._ends and self.allows(text[:-1], text[-1]):
            text.pop()
        place = self._place(text)
        if place is None:
            raise DecoderError(f"the monitor forbids one of the tokens {text} that were committed")
        self._text, self._names = place
        self._known = {}

    def _place(self, path: Sequence[int]) -> tuple[bytes, Names] | None:
        """The text behind a path and what may follow; None if the path is impossible."""
        if not path:
            return self._text, self._names
        key = tuple(path)
        if key not in self._known:
            before, token = self._place(key[:-1]), key[-1]
            self._known[key] = None
            inside = 0 <= token < self._constraint.vocab_size and token not in self._ends
            if before is not None and inside and self._constraint.text[token]:
                piece = self._constraint.spellings[token]
                names = self._constraint.read(*before, piece)
                if names is not None:
                    self._known[key] = before[0] + piece, names
        return self._known[key]


def _complete(names: Names) -> bool:
    return not names or b"" in names
