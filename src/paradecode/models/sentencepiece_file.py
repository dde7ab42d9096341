"""Read tokenizer.model, a SentencePiece vocabulary, without the sentencepiece package.

The file is a protobuf message. Its pieces have the same type numbers as tokens in GGUF files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Union

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.models.gguf_header import DAMAGED, Header
from paradecode.models.metadata import MAX_LISTING, Metadata

BPE, MOST_TYPE = 2, 6
MOST_FIELDS = 1 << 20
"""Largest number of pieces of a file; Gemma's has 262,144."""
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
"""Fields of the message: the pieces, the trainer's settings, and the normalizer's settings."""

Value = Union[int, bytes]


def sentencepiece_header(path: Path) -> Header:
    """Return the vocabulary as fields of a GGUF file.

    Raises:
        InvalidModel: the file is damaged, or texts are normalized or merged differently from
            Llama's.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LISTING + 1)
    except OSError as error:
        raise InvalidModel("model", str(path), f"the file cannot be read: {error}") from None
    message = [*islice(_fields(data), MOST_FIELDS + 1)]
    if len(data) > MAX_LISTING or len(message) > MOST_FIELDS:
        fix = f"at most {MAX_LISTING} bytes and {MOST_FIELDS} pieces are read"
        raise InvalidModel("model", str(path), fix)
    pieces = [dict(_fields(value)) for number, value in message if number == _PIECES]
    trainer, normalizer = (
        dict(_fields(next((v for number, v in message if number == wanted), b"")))
        for wanted in (_TRAINER, _NORMALIZER)
    )
    if trainer.get(3) != BPE or normalizer.get(2) or normalizer.get(4, 1):
        fix = "only BPE without normalization, as Llama's, is known; give tokenizer.json"
        raise InvalidModel("tokenizer.model", str(path), fix)
    tokens, scores, types = list[str](), list[bytes](), list[int]()
    for piece in pieces:
        text, score, kind = piece.get(1, b""), piece.get(2, bytes(4)), piece.get(3, 1)
        if not (isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int)):
            raise InvalidModel("tokenizer.model", str(path), DAMAGED)
        if len(score) != 4 or kind > MOST_TYPE:
            raise InvalidModel("tokenizer.model", str(path), DAMAGED)
        try:
            tokens.append(text.decode())
        except UnicodeDecodeError:
            raise InvalidModel("tokenizer.model", str(path), DAMAGED) from None
        scores.append(score)
        types.append(kind)
    fields = {
        "model": "llama", "tokens": tokens,
        "scores": np.frombuffer(b"".join(scores), "<f4"), "token_type": np.array(types),
        "add_space_prefix": bool(normalizer.get(3, 1)), "add_bos_token": False,
    }  # fmt: skip
    return Header(Metadata({f"tokenizer.ggml.{name}": v for name, v in fields.items()}), {})


def _fields(data: Value) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a protobuf message: an int or bytes."""
    if isinstance(data, int):
        raise InvalidModel("tokenizer.model", data, DAMAGED)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise InvalidModel("tokenizer.model", at, DAMAGED)
            value |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 2: -1, 5: 4}.get(key & 7)
        size = varint() if size == -1 else size
        if size is None or size > len(data) - at:
            raise InvalidModel("tokenizer.model", at, DAMAGED)
        at += size
        yield key >> 3, data[at - size : at]
