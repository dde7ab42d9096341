"""Tokens that are placed on the canvas before decoding (structure priors)."""

from __future__ import annotations

import numpy as np

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.canvas import Canvas

FORM = "write offset:token token ..., as in '0:523 88, 40:9'; a negative offset counts from the end"


def read_placed(text: str) -> list[tuple[int, list[int]]]:
    """Parse ``offset:token token, offset:token`` into offsets in the output and their token ids.

    Raises:
        ValueError: if the text has another form.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        offset, colon, tokens = part.partition(":")
        numbers = [offset.strip().removeprefix("-"), *tokens.split()]
        if not colon or len(numbers) < 2 or not all(_number(n) for n in numbers):
            raise ValueError(FORM)
        found.append((int(offset), [int(token) for token in tokens.split()]))
    return found


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def place(canvas: Canvas, text: str, where: str) -> int:
    """Commit the tokens that ``text`` names, and return one past the last of their positions.

    Without tokens, return the start of the output.

    Args:
        where: name of the setting, for error messages.

    Raises:
        InvalidInput: if a token is outside of the output or of the vocabulary, is the mask token,
            or takes the position of another token. Also if no position is left to decode.
    """
    end, length = canvas.start, canvas.shown_end - canvas.start
    for offset, tokens in read_placed(text):
        first = (canvas.start if offset >= 0 else canvas.shown_end) + offset
        last = first + len(tokens)
        if not canvas.start <= first < last <= canvas.shown_end:
            raise InvalidInput(where, text, f"the output has {length} positions")
        if max(tokens) >= canvas.vocab_size:
            raise InvalidInput(where, text, f"give token ids below {canvas.vocab_size}")
        if not canvas.masked[first:last].all() or canvas.mask_token in tokens:
            raise InvalidInput(where, text, "place each token once, and never the mask token")
        canvas.commit(np.arange(first, last), np.array(tokens, np.int32))
        end = max(end, last)
    if not canvas.masked[: canvas.shown_end].any():
        raise InvalidInput(where, text, "leave at least one position to be decoded")
    return end
