"""A text that is forked in the middle of a character continues twice, independently."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paradecode.models.text_stream import (
    ByteLevelPieces,
    Detokeniser,
    OutputText,
    Pieces,
    SentencePieces,
    byte_characters,
)

BYTES = list("Größe, 日本 ✓!".encode())
WRITTEN = {byte: character for character, byte in byte_characters().items()}
RULES: list[tuple[Callable[[], Pieces], Callable[[int], str]]] = [
    (ByteLevelPieces, WRITTEN.__getitem__),
    (lambda: SentencePieces(True, True), lambda byte: f"<0x{byte:02X}>"),
]


@pytest.mark.parametrize(("pieces", "spelled"), RULES)
@pytest.mark.parametrize("at", range(len(BYTES)))
def test_a_fork_goes_on_by_itself(
    pieces: Callable[[], Pieces], spelled: Callable[[int], str], at: int
) -> None:
    whole = OutputText(Detokeniser(pieces, spelled, ()), ["!"])
    for byte in BYTES[:at]:
        whole.push(byte)
    fork = whole.fork()
    for byte in b"other":
        fork.push(byte)
    other = whole.fork()
    for byte in BYTES[at:]:
        whole.push(byte)
        other.push(byte)
    fresh = OutputText(Detokeniser(pieces, spelled, ()), ["!"])
    for byte in [*BYTES[:at], *b"other"]:
        fresh.push(byte)
    for text in (whole, other, fork, fresh):
        text.finish()
    assert whole.value == other.value
    assert whole.stopped == other.stopped == "!"
    assert whole.value == bytes(BYTES[:-1]).decode()
    assert fork.value == fresh.value != whole.value
    assert fork.stopped is None
