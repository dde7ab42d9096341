"""Incremental detokenising: constant work a token, and never half a character.

Two families of vocabularies exist, and each knows exactly when a character is complete, so nothing
is decoded twice and nothing is guessed from trailing U+FFFD.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Collection
from typing import Any, Protocol

from paradecode.core.errors import InvalidModel


class Run(Protocol):
    """Turns the pieces of one text into text, in order."""

    def push(self, piece: str) -> str:
        """Text completed by this piece."""

    def flush(self) -> str:
        """Text of what is still incomplete."""


Pieces = Callable[[], Run]
"""Makes the Run of a new text."""


class TextStream:
    """Detokenises one growing text; all pieces together equal ``Tokenizer.decode`` of all ids."""

    def __init__(
        self, pieces: Pieces, token: Callable[[int], str], hidden: Collection[int]
    ) -> None:
        self._pieces, self._token, self._hidden = pieces, token, hidden
        self._run = pieces()

    def push(self, index: int) -> str:
        """Add one id; returns the text that it completes, empty in mid-character."""
        if index in self._hidden:
            return ""
        piece = self._token(index)
        return self._run.push(piece) if piece else ""

    def flush(self) -> str:
        """The rest, with U+FFFD for an unfinished character. The stream then starts anew."""
        rest = self._run.flush()
        self._run = self._pieces()
        return rest


def pieces_of(backend: Any) -> Pieces:
    """The decoding rule of a ``tokenizers.Tokenizer``.

    Raises:
        InvalidModel: neither byte-level nor SentencePiece with byte fallback.
    """
    steps = _steps(json.loads(backend.decoder.__getstate__())) if backend.decoder else []
    kinds = [step["type"] for step in steps]
    if kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return ByteLevelRun
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        marks = [s["pattern"].get("String") for s in steps if s["type"] == "Replace"]
        strips = [(s["content"], s["start"], s["stop"]) for s in steps if s["type"] == "Strip"]
        if marks == ["▁"] and strips in ([], [(" ", 1, 0)]):
            return lambda: _SentencePieceRun(bool(strips), "ByteFallback" in kinds)
    raise InvalidModel(
        "tokenizer.decoder", kinds or None, "use a byte-level or SentencePiece-like tokenizer"
    )


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def byte_characters() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTES = byte_characters()


class ByteLevelRun:
    """Every piece is bytes; characters are complete when UTF-8 says so."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: str) -> str:
        try:
            data = bytes([_BYTES[character] for character in piece])
        except KeyError:  # an added token is written as it reads
            data = piece.encode("utf-8")
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _SentencePieceRun:
    """Pieces are text with "▁" for a space, or single bytes written <0xNN>.

    A run of bytes that is not UTF-8 as a whole is one U+FFFD a byte, so it waits for its end.
    """

    def __init__(self, strip: bool, byte_fallback: bool) -> None:
        self._strip, self._fallback = strip, byte_fallback
        self._bytes = bytearray()

    def push(self, piece: str) -> str:
        if self._fallback and len(piece) == 6 and piece.startswith("<0x") and piece[-1] == ">":
            try:
                self._bytes.append(int(piece[3:5], 16))
                return ""
            except ValueError:
                pass
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
