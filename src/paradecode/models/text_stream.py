"""Text of a growing output: tokens become text one by one, and stop strings end it.

There are two families of vocabularies, byte-level and SentencePiece-like. In each of them the end
of every character is known, so each token is decoded once and no incomplete character is shown.
(``tokenizers.DecodeStream`` is not used, because it differs from ``decode`` for the byte tokens of
SentencePiece vocabularies.)
"""

from __future__ import annotations

import codecs
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from copy import copy, deepcopy
from typing import Any, Protocol, Union

from paradecode.core.errors import InvalidModel
from paradecode.models.tokenizer_library import steps_of


class TextStream(Protocol):
    """Turn token ids into text, and hold incomplete characters back; ``copy`` makes an independent
    stream."""

    def push(self, token: int) -> str:
        """Add one token id; return the text that it completes."""
        ...

    def flush(self) -> str:
        """Return the rest of the text, with U+FFFD for an incomplete character.

        After this call a new text can begin.
        """
        ...


NewTextStream = Callable[[], TextStream]


class OutputText:
    """The text of one output, cut at the first stop string.

    Args:
        stream: detokeniser, or None if the engine only serves token ids.
        stops: texts that end the output.

    Attributes:
        stopped: the stop text that ended the output, or None.
    """

    def __init__(self, stream: TextStream | None, stops: Sequence[str]) -> None:
        self._stream, self._stops = stream, tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self.value = ""
        self._ends = array("L")
        self._sent = 0
        self.stopped: str | None = None

    def push(self, token: int) -> bool:
        """Add a token; return whether a stop string is complete, which is then cut off."""
        stopped = self._stream is not None and self._add(self._stream.push(token))
        self._ends.append(len(self.value))
        return stopped

    def finish(self) -> None:
        """Add the text that the detokeniser has held back."""
        if self._stream is not None and self.stopped is None:
            self._add(self._stream.flush())

    def follow(self, other: OutputText) -> None:
        """Continue after the text that was already taken from ``other``."""
        self._sent = other._sent

    def fork(self) -> OutputText:
        """Return a copy that continues independently."""
        twin = copy(self)
        twin._stream, twin._ends = copy(self._stream), self._ends[:]
        return twin

    def take(self, finished: bool) -> list[tuple[int, str]]:
        """Return the new text, without an end that may become a stop string.

        The text comes in pieces, each with the index of the token that wrote it, from 0. Text that
        was held back until the end has the index after the last token.
        """
        end = len(self.value) if finished else len(self.value) - self._held()
        pieces: list[tuple[int, str]] = []
        while self._sent < end:
            place = bisect_right(self._ends, self._sent)
            until = min(end, self._ends[place]) if place < len(self._ends) else end
            pieces.append((place, self.value[self._sent : until]))
            self._sent = until
        return pieces

    def _add(self, piece: str) -> bool:
        if not self._stops:
            self.value += piece
            return False
        searched = max(0, len(self.value) - self._longest + 1)
        self.value += piece
        found = [(at, s) for s in self._stops if (at := self.value.find(s, searched)) >= 0]
        if found:
            at, self.stopped = min(found, key=lambda each: each[0])
            self.value = self.value[:at]
        return bool(found)

    def _held(self) -> int:
        """Return the length of the longest end of the text that may begin a stop string."""
        for size in range(min(self._longest - 1, len(self.value)), 0, -1):
            end = self.value[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0


class Detokeniser:
    """A :class:`TextStream`; its pieces together equal ``Tokenizer.decode`` of all ids.

    Args:
        pieces: the decoding rule of the vocabulary (see :func:`pieces_of`).
        token: returns the vocabulary's text of an id, or None.
        hidden: ids that are not text.
    """

    def __init__(
        self, pieces: Pieces, token: Callable[[int], str | None], hidden: Collection[int]
    ) -> None:
        self._new, self._token, self._hidden = pieces, token, hidden
        self._pieces = pieces()

    def __copy__(self) -> Detokeniser:
        twin = Detokeniser(self._new, self._token, self._hidden)
        twin._pieces = deepcopy(self._pieces)
        return twin

    def push(self, token: int) -> str:
        if token in self._hidden or not 0 <= token < 1 << 32:
            return ""
        piece = self._token(token)
        return self._pieces.push(piece) if piece else ""

    def flush(self) -> str:
        rest = self._pieces.flush()
        self._pieces = self._new()
        return rest


def pieces_of(backend: Any) -> Pieces:
    """Return the decoding rule of a ``tokenizers.Tokenizer``.

    Raises:
        InvalidModel: it is neither byte-level nor SentencePiece with byte fallback.
    """
    steps = steps_of(backend.decoder)
    kinds = [step["type"] for step in steps]
    if kinds.count("ByteLevel") == 1 and set(kinds) <= {"ByteLevel", "Fuse"}:
        return ByteLevelPieces
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        marks = [(s["pattern"].get("String"), s["content"]) for s in steps
                 if s["type"] == "Replace"]  # fmt: skip
        strips = [(s["content"], s["start"], s["stop"]) for s in steps if s["type"] == "Strip"]
        if marks == [("▁", " ")] and strips in ([], [(" ", 1, 0)]):
            return lambda: SentencePieces(bool(strips), "ByteFallback" in kinds)
    raise InvalidModel(
        "tokenizer.decoder", kinds or None, "use a byte-level or SentencePiece-like tokenizer"
    )


def byte_characters() -> dict[str, int]:
    """Return character -> byte, as byte-level BPE writes bytes (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTES = byte_characters()
_BYTE = re.compile("<0x([0-9A-Fa-f+][0-9A-Fa-f])>")  # The library reads <0x+A> as <0x0A>.


def byte_in(piece: str) -> int | None:
    """Return the byte for which a SentencePiece piece stands, or None if the piece is text."""
    match = _BYTE.fullmatch(piece)
    return int(match[1], 16) if match else None


class ByteLevelPieces:
    """Decode pieces that are bytes; UTF-8 shows when a character is complete."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: str) -> str:
        try:
            data = bytes([_BYTES[character] for character in piece])
        except KeyError:  # An added token is written as it reads.
            data = piece.encode("utf-8")
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class SentencePieces:
    """Decode pieces that are text with "▁" for a space, or single bytes written <0xNN>.

    A run of bytes is held back until its end, because each of its bytes becomes U+FFFD if the whole
    run is not UTF-8.
    """

    def __init__(self, strip: bool, byte_fallback: bool) -> None:
        self._strip, self._fallback = strip, byte_fallback
        self._bytes = bytearray()

    def push(self, piece: str) -> str:
        byte = byte_in(piece) if self._fallback else None
        if byte is not None:
            self._bytes.append(byte)
            return ""
        return self._text(self._end_of_bytes() + piece.replace("▁", " "))

    def flush(self) -> str:
        return self._text(self._end_of_bytes())

    def _end_of_bytes(self) -> str:
        held, self._bytes = bytes(self._bytes), bytearray()
        try:
            return held.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(held)

    def _text(self, text: str) -> str:
        if text and self._strip:
            self._strip = False
            return text[1:] if text[0] == " " else text
        return text


Pieces = Callable[[], Union[ByteLevelPieces, SentencePieces]]
"""A factory of objects that decode the pieces of a new text."""
