"""A monitor as a constraint: the names that may follow become masks over tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError, InvalidInput

Names = tuple[bytes, ...]
"""The rest of each name that may follow; an empty rest says that a name may end here."""
FREE: Names = ()
"""No name has begun, or its possible ends are not known."""


class Monitor(Protocol):
    """Says which names may follow a text (Agrawal et al. 2023, arXiv 2306.10763).

    A monitor has no state: its answer depends only on the text, so going back costs nothing. It
    works on bytes, because a token may end in the middle of a character.
    """

    @property
    def triggers(self) -> frozenset[int]:
        """The bytes after which a name may begin that :meth:`names` knows."""
        ...

    def names(self, text: bytes) -> Collection[bytes] | None:
        """The names that may follow ``text``, which ends with a trigger.

        None, or no names, allows anything. After a name the text ends, or a byte follows that ends
        names.
        """
        ...

    def ends(self, value: int) -> bool:
        """Whether a byte ends a name because no name can contain it."""
        ...


class MonitoredText:
    """Implements :class:`paradecode.core.constraint.Constraint` by a monitor.

    Args:
        monitor: says which names may follow.
        spellings: the bytes of each token id; empty for ids that are not text.
        before: the text that the output continues.
    """

    def __init__(self, monitor: Monitor, spellings: Sequence[bytes], before: bytes = b"") -> None:
        self.monitor, self.spellings, self.before = monitor, spellings, before
        triggers = [bytes([value]) for value in monitor.triggers]
        # Tokens in which a name begins; the others are all allowed while no name has begun.
        self.beginning = [
            token
            for token, text in enumerate(spellings)
            if any(trigger in text[:-1] for trigger in triggers)
        ]
        self.text = np.array([len(text) > 0 for text in spellings], bool)
        self._by_first: dict[int, list[int]] = {}
        for token in np.flatnonzero(self.text).tolist():
            self._by_first.setdefault(spellings[token][0], []).append(token)
        self._names = lru_cache(maxsize=64)(lambda text: tuple(monitor.names(text) or FREE))

    @property
    def vocab_size(self) -> int:
        return len(self.spellings)

    def follow(self, ends: Sequence[int]) -> MonitorMatcher:
        return MonitorMatcher(self, ends)

    def begin(self) -> Names:
        """What may follow the text before the output, which may end in the middle of a name."""
        start = len(self.before)
        while start and not self.monitor.ends(self.before[start - 1]):
            start -= 1
        if not start or self.before[start - 1] not in self.monitor.triggers:
            return FREE
        known = self._names(self.before[:start])
        return self.read(self.before[:start], known, self.before[start:]) or FREE

    def read(self, text: bytes, names: Names, piece: bytes) -> Names | None:
        """What may follow ``text + piece`` if ``names`` may follow ``text``.

        None if the piece is forbidden.
        """
        for at, value in enumerate(piece):
            if names and not self.monitor.ends(value):
                names = tuple(name[1:] for name in names if name[:1] == bytes([value]))
                if not names:
                    return None
                continue
            if not _complete(names):
                return None
            triggered = value in self.monitor.triggers
            names = self._names(text + piece[: at + 1]) if triggered else FREE
        return names

    def allowed(self, text: bytes, names: Names) -> NDArray[np.bool_]:
        """The tokens that may follow ``text`` if ``names`` may follow it, bool [V]."""
        if not names:
            mask, tokens = self.text.copy(), self.beginning
        else:
            mask = np.zeros(self.vocab_size, bool)
            first = {name[0] for name in names if name}
            if b"" in names:
                first |= {value for value in self._by_first if self.monitor.ends(value)}
            tokens = [token for value in first for token in self._by_first.get(value, ())]
        for token in tokens:
            mask[token] = self.read(text, names, self.spellings[token]) is not None
        return mask


class MonitorMatcher:
    """Implements :class:`paradecode.core.constraint.Matcher`.

    It keeps the text and what may follow for each path since the last commit. So going back is a
    look-up, and the monitor is only asked about drafts that are read.
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
        """The text with a path appended, and what may follow; None if the path is impossible."""
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
    """Whether no name has begun, or the one that has begun may end here."""
    return not names or b"" in names
