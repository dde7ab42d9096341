"""Turns a monitor into a constraint: the names that may follow become masks over tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError, InvalidInput


class Names(NamedTuple):
    """The names that may follow, in sorted order, and the part of a name that is already written.

    If ``known`` is empty, anything may follow: no name has begun, or its possible ends are unknown.
    """

    known: tuple[bytes, ...] = ()
    begun: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.known)

    @property
    def complete(self) -> bool:
        """True if no name has begun, or the name that has begun may end here."""
        at = bisect_left(self.known, self.begun)
        return not self.known or self.known[at : at + 1] == (self.begun,)

    def then(self, written: bytes) -> Names | None:
        """Return the state after ``written`` continues the name; None if no name has this form."""
        begun = self.begun + written
        at = bisect_left(self.known, begun)
        fits = at < len(self.known) and self.known[at].startswith(begun)
        return Names(self.known, begun) if fits else None

    def ahead(self) -> set[bytes]:
        """Return every text that may continue the name, whether or not it completes the name."""
        start, found = len(self.begun), set()
        for name in self.known[bisect_left(self.known, self.begun) :]:
            if not name.startswith(self.begun):
                break
            found |= {name[start:end] for end in range(start + 1, len(name) + 1)}
        return found


FREE = Names()


class Monitor(Protocol):
    """Interface: says which names may follow a text (Agrawal et al. 2023, arXiv 2306.10763).

    A monitor has no state: its answer depends only on the text, so going back costs nothing. It
    works on bytes, because a token may end in the middle of a character.
    """

    @property
    def triggers(self) -> frozenset[int]:
        """Bytes after which a name may begin that :meth:`names` knows."""

    def names(self, text: bytes) -> Collection[bytes] | None:
        """Return the names that may follow ``text``, whose last byte is in ``triggers``.

        None, or no names, means that anything may follow. After a name, the text ends or a byte
        follows that ends names.
        """

    def ends(self, value: int) -> bool:
        """Return whether a byte ends a name, because no name can contain it."""


class _TokenWords:
    """For each token of a vocabulary, the part of a name that it writes. It serves all texts.

    Args:
        spellings: the bytes of each token id; empty for ids that are not text.
        triggers: the bytes after which a name may begin.
        ending: the bytes that end a name.

    Attributes:
        text: bool [V], True for tokens that are text.
        beginning: tokens in which a name begins. All other tokens are allowed while no name has
            begun.
        by_word: part of a name, before a byte that ends it -> tokens that write this part.
        ended: bool [V], True for tokens that begin with a byte that ends a name.
    """

    def __init__(
        self, spellings: Sequence[bytes], triggers: frozenset[int], ending: frozenset[int]
    ) -> None:
        self.text = np.array([len(text) > 0 for text in spellings], bool)
        self.beginning = [
            token for token, text in enumerate(spellings) if not triggers.isdisjoint(text[:-1])
        ]
        self.by_word: dict[bytes, list[int]] = {}
        for token in np.flatnonzero(self.text).tolist():
            text = spellings[token]
            end = next((at for at, value in enumerate(text) if value in ending), len(text))
            self.by_word.setdefault(text[:end], []).append(token)
        self.ended = np.zeros(len(spellings), bool)
        self.ended[self.by_word.get(b"", [])] = True


_token_words = lru_cache(maxsize=2)(_TokenWords)
"""Returns a cached :class:`_TokenWords`, because it is slow to make and the same for a model."""


class MonitoredText:
    """A constraint (see :class:`paradecode.core.constraint.Constraint`) that follows a monitor.

    Args:
        monitor: says which names may follow.
        spellings: the bytes of each token id; empty for ids that are not text.
        before: the text that the output continues.
        waits: True if the monitor may take long (:func:`paradecode.core.handoff.wait_for`).
    """

    def __init__(
        self, monitor: Monitor, spellings: Sequence[bytes], before: bytes = b"", waits: bool = False
    ) -> None:
        self.monitor, self.before, self.waits = monitor, before, waits
        self.spellings, self.vocab_size = tuple(spellings), len(spellings)
        ending = frozenset(value for value in range(256) if monitor.ends(value))
        self.words = _token_words(self.spellings, monitor.triggers, ending)
        self._names = lru_cache(maxsize=16)(lambda text: Names(tuple(monitor.names(text) or ())))

    def follow(self, ends: Sequence[int]) -> MonitorMatcher:
        return MonitorMatcher(self, ends)

    def begin(self) -> Names:
        """Return the names that may follow the text before the output. It may end within a name."""
        start = len(self.before)
        while start and not self.monitor.ends(self.before[start - 1]):
            start -= 1
        if not start or self.before[start - 1] not in self.monitor.triggers:
            return FREE
        known = self._names(self.before[:start])
        return self.read(self.before[:start], known, self.before[start:]) or FREE

    def read(self, text: bytes, names: Names, piece: bytes) -> Names | None:
        """Return the names that may follow ``text + piece``, if ``names`` may follow ``text``.

        Return None if the piece is forbidden.
        """
        at = 0
        while at < len(piece):
            if names:
                end = self._word(piece, at)
                further = names.then(piece[at:end])
                if end == len(piece) or further is None:
                    return further
                if not further.complete:
                    return None
                at = end
            triggered = piece[at] in self.monitor.triggers
            at += 1
            names = self._names(text + piece[:at]) if triggered else FREE
        return names

    def _word(self, piece: bytes, start: int) -> int:
        """Return the end of the part of a name that begins at ``start``."""
        end = start
        while end < len(piece) and not self.monitor.ends(piece[end]):
            end += 1
        return end

    def allowed(self, text: bytes, names: Names) -> NDArray[np.bool_]:
        """Return bool [V]: True for tokens that may follow ``text`` if ``names`` may follow it."""
        words = self.words
        if not names:
            mask, tokens = words.text.copy(), words.beginning
        else:
            mask = np.zeros(self.vocab_size, bool)
            tokens = [token for word in names.ahead() for token in words.by_word.get(word, ())]
            if names.complete:
                mask |= words.ended
                tokens += [token for token in words.beginning if words.ended[token]]
        for token in tokens:
            mask[token] = self.read(text, names, self.spellings[token]) is not None
        return mask


class MonitorMatcher:
    """A matcher (see :class:`paradecode.core.constraint.Matcher`) that follows a monitor.

    It stores the text, and the names that may follow each path since the last commit. So going back
    is a look-up, and the monitor is asked only about drafts that are read.
    """

    def __init__(self, constraint: MonitoredText, ends: Sequence[int]) -> None:
        self._constraint, self._ends = constraint, frozenset(ends)
        self._end_ids = np.array(sorted(ends), np.int32)
        # The names that may follow are computed only on demand, because this may take long.
        self._text, self._names = constraint.before, FREE
        self._unread: list[int] | None = []
        self._known: dict[tuple[int, ...], tuple[bytes, Names] | None] = {}

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        place = self._place(path)
        if place is None:
            return None
        allowed = self._constraint.allowed(*place)
        allowed[self._end_ids] = place[1].complete
        if not allowed.any():
            fix = "loosen it: this model's tokens cannot spell what may follow"
            raise InvalidInput("constraint", "python", fix)
        return allowed

    def allows(self, path: Sequence[int], token: int) -> bool:
        place = self._place(path)
        if place is None:
            return True
        if token in self._ends:
            return place[1].complete
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
        if self._unread is not None:  # The monitor was not needed so far.
            self._unread += text
            return
        place = self._place(text)
        if place is None:
            raise DecoderError(f"the monitor forbids one of the tokens {text} that were committed")
        self._text, self._names = place
        self._known = {}

    def _begin(self, committed: list[int]) -> None:
        self._unread = None
        self._names = self._constraint.begin()
        self.advance(committed)

    def _place(self, path: Sequence[int]) -> tuple[bytes, Names] | None:
        """Return the text after a path and the names that may follow; None if it is impossible."""
        if self._unread is not None:
            self._begin(self._unread)
        if not path:
            return self._text, self._names
        key = tuple(path)
        if key not in self._known:
            before, token = self._place(key[:-1]), key[-1]
            self._known[key] = None
            inside = 0 <= token < self._constraint.vocab_size and token not in self._ends
            if before is not None and inside and self._constraint.words.text[token]:
                piece = self._constraint.spellings[token]
                names = self._constraint.read(*before, piece)
                if names is not None:
                    self._known[key] = before[0] + piece, names
        return self._known[key]
