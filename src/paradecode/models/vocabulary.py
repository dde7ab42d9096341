"""Match the vocabularies of two models by the text of their tokens, and trim LM heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.vocabulary import Vocabulary
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.text_stream import byte_characters, byte_in
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.weights import Tensor

SMALLEST_SHARE = 0.05
"""Smallest share of the draft's tokens that the target must have for drafts to be useful."""


def match(
    target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int
) -> Vocabulary | None:
    """Map a draft model's tokens to the target's; None if the vocabularies are the same.

    Args:
        target_size, draft_size: rows of the models' LM heads, at least as many as tokens.

    Raises:
        InvalidInput: the two have almost no tokens in common.
    """
    theirs = [spelling(target, token) for token in range(target_size)]
    own = [spelling(draft, token) for token in range(draft_size)]
    if theirs == own:
        return None
    place = {text: token for token, text in reversed([*enumerate(theirs)]) if text}
    first = {text: token for token, text in reversed([*enumerate(own)]) if text}
    to_target = np.array(
        [place.get(text, -1) if first.get(text) == token else -1 for token, text in enumerate(own)],
        np.int32,
    )
    if (to_target >= 0).mean() < SMALLEST_SHARE:
        raise InvalidInput("draft_model", "its tokens", "give a model with a similar tokenizer")
    filler = next(token for token, text in enumerate(own) if text)
    pieces = [_spell(text, first, draft, filler) for text in theirs]
    starts = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    flat = np.array([token for piece in pieces for token in piece], np.int32)
    return Vocabulary(to_target, flat, starts.astype(np.int64))


def trim(
    draft: Checkpoint, vocabulary: Vocabulary | None, tokens: NDArray[np.integer]
) -> tuple[Checkpoint, Vocabulary]:
    """Return a draft model that proposes only some of the target's tokens, and its vocabulary.

    The model still reads all of its tokens. Its LM head, which is large in a small model, has only
    the rows of these tokens (FR-Spec, arXiv 2502.14856).

    Args:
        vocabulary: the result of :func:`match`.
        tokens: the target's ids of the tokens to propose.

    Raises:
        InvalidInput: the model does not draft from left to right, or has none of the tokens.
    """
    config = draft.config
    if config.attention != "causal":
        fix = "leave it out: only draft models that write from left to right are trimmed"
        raise InvalidInput("draft_vocabulary", config.name, fix)
    to_target = np.arange(config.vocab_size) if vocabulary is None else vocabulary.to_target
    outputs = np.flatnonzero(np.isin(to_target, tokens)).astype(np.int32)
    if len(outputs) == 0:
        raise InvalidInput("draft_vocabulary", config.name, "the model has none of its tokens")
    head = draft.weights["embed" if config.tied_head else "head"]
    rows = Tensor(head.data[outputs], (len(outputs), *head.shape[1:]), head.kind)
    trimmed = replace(
        draft, config=replace(config, tied_head=False, outputs=len(outputs)),
        weights={**draft.weights, "head": rows},
    )  # fmt: skip
    if vocabulary is None:
        return trimmed, Vocabulary.of_target(config.vocab_size, outputs)
    return trimmed, replace(vocabulary, outputs=outputs)


def spelling(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token's text; empty for unused ids.

    A control token has 0xFF and its name, so it never equals a text.
    """
    if token >= tokenizer.vocab_size:
        return b""
    piece = tokenizer.token(token)
    if tokenizer.is_control(token):
        return b"\xff" + piece.encode()
    if tokenizer.byte_level:
        try:
            return piece.translate(_LATIN).encode("latin-1")
        except UnicodeEncodeError:  # An added token is written as it reads.
            return piece.encode()
    byte = byte_in(piece)
    return bytes([byte]) if byte is not None else piece.replace("▁", " ").encode()


class _Latin(dict[int, str]):
    """Map GPT-2's character of each byte to Latin-1, and other characters to U+FFFF.

    U+FFFF does not exist in Latin-1, so encoding it fails.
    """

    def __missing__(self, character: int) -> str:
        return "\uffff"


_LATIN = _Latin({ord(character): chr(byte) for character, byte in byte_characters().items()})


def _spell(text: bytes, first: dict[bytes, int], draft: Tokenizer, filler: int) -> list[int]:
    """Return the draft model's tokens, at least one, that spell ``text``."""
    if text in first:
        return [first[text]]
    if text.startswith(b"\xff") or not text:
        return [filler]
    try:
        ids = draft.encode(text.decode(), special=False, parse_special=False)
    except UnicodeDecodeError:  # Part of a character: byte by byte.
        ids = [first[bytes([byte])] for byte in text if bytes([byte]) in first]
    return ids or [filler]
