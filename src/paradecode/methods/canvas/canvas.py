"""The state of a canvas: which positions are masked, decided, and held in the K/V cache."""

from __future__ import annotations

from copy import copy

import numpy as np

from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.methods.canvas.feasible import Marks, Positions, Rules, Tokens, rules_of

NOTHING = -1
"""Value in :attr:`Canvas.stored` of a position that has no keys and values in the cache."""


class Canvas:
    """Prompt and output as one row of N positions; slot i of the K/V cache is position i.

    Args:
        prompt: int32 [P].
        length: number of positions after the prompt; at first all are masked.
        mask_token: the token that the model reads at masked positions.
        block: 0 if every row sees every row (full attention); n if rows see their own block of n
            positions and the ones before it; 1 is causal attention.
        shift: whether the logits of row i predict position i + 1.

    Attributes:
        tokens: int32 [N], the mask token where masked.
        masked: bool [N]; needed because a prompt may contain the mask token.
        stored: int32 [N], the token that the cached K/V of a position were computed from, or -1.
        start: P, where the output begins.
        shown_end: one past the last position that the request may show; those behind it only fill
            up the last block of the model.
        origin: where blocks of fixed length begin: at P, or for a model with its own blocks at the
            start of the block that contains P.
        steps: number of forwards so far.
        stops: token ids that end the text.
        layers, heads, vocab_size: sizes of the model.
        gives_attention: whether the model's forwards can return attention weights.
        rules: rules of the request's constraint, or None.
    """

    rules: Rules | None = None
    stops: tuple[int, ...] = ()
    layers = heads = 1
    vocab_size = 1 << 31
    gives_attention = True

    def __init__(
        self, prompt: Tokens, length: int, mask_token: int, block: int = 0, shift: bool = False
    ) -> None:
        self.start, self.block, self.shift = len(prompt), block, shift
        self.mask_token = mask_token
        self.shown_end = total = self.start + length
        self.tokens = np.full(total, mask_token, np.int32)
        self.tokens[: self.start] = prompt
        self.masked = np.arange(total) >= self.start
        self.stored = np.full(total, NOTHING, np.int32)
        self.origin = self.start // block * block if block else self.start
        self.steps = 0

    @classmethod
    def of(cls, seq: TokenSequence) -> Canvas:
        """The canvas of a request, as long as ``max_tokens`` and the context allow.

        For a model with its own blocks it ends with a whole block.

        Raises:
            InvalidInput: if the model is not a masked diffusion model.
        """
        facts = seq.about()
        if facts.canvas_length:
            fix = "renoise: the model has no mask token, it refines random tokens"
            raise InvalidInput("decoder", "one that fills masks", f"use {fix}")
        if facts.mask_token is None:
            raise InvalidInput("decoder", "diffusion", "the model has no mask token: it is causal")
        block = {"full": 0, "causal": 1}.get(facts.attention, facts.block_length)
        start, end = len(seq.tokens), len(seq.tokens) + seq.room
        if block:
            end = min(-(-end // block) * block, facts.context_length)
        canvas = cls(seq.tokens, end - start, facts.mask_token, block, facts.shift)
        canvas.shown_end = start + seq.room
        if block > 1:
            canvas.stored[: seq.found()] = canvas.tokens[: seq.found()]
        canvas.stops = tuple(seq.sampler.stop_ids.tolist())
        canvas.layers, canvas.heads, canvas.vocab_size = facts.layers, facts.heads, facts.vocab_size
        canvas.gives_attention = facts.gives_attention
        canvas.rules = rules_of(seq, seq.room, canvas.mask_token)
        return canvas

    def copy(self) -> Canvas:
        """An independent copy."""
        other = copy(self)
        other.tokens, other.masked = self.tokens.copy(), self.masked.copy()
        other.stored = self.stored.copy()
        return other

    @property
    def end(self) -> int:
        """N: one past the last position."""
        return len(self.tokens)

    @property
    def edge(self) -> int:
        """The first masked position, or N; everything before it is text."""
        masks = self.masked.argmax()
        return int(masks) if self.masked[masks] else self.end

    @property
    def final(self) -> Marks:
        """bool [N]: positions that are decided and cached with their present token."""
        return ~self.masked & (self.stored == self.tokens)

    @property
    def cached(self) -> Marks:
        """bool [N]: positions with stored keys and values, which may be stale."""
        return self.stored != NOTHING

    def reach(self, end: int) -> int:
        """One past the last row that rows before ``end`` may see."""
        return min(-(-end // self.block) * self.block, self.end) if self.block else self.end

    def commit(self, positions: Positions, tokens: Tokens) -> None:
        """Decide masked positions."""
        twice = len(positions) > 1 and (np.diff(np.sort(positions)) == 0).any()
        if twice or not self.masked[positions].all():
            raise DecoderError("a policy may commit masked positions only, each of them once")
        if len(tokens) != len(positions):
            raise DecoderError(f"{len(tokens)} tokens for {len(positions)} positions")
        if len(tokens) and (tokens == self.mask_token).any():
            raise DecoderError("the mask token cannot be committed")
        self.tokens[positions] = tokens
        self.masked[positions] = False

    def revoke(self, positions: Positions) -> None:
        """Mask decided positions of the output again."""
        if len(positions) and (positions.min() < self.start or self.masked[positions].any()):
            raise DecoderError("only decided positions of the output can be masked again")
        self.tokens[positions] = self.mask_token
        self.masked[positions] = True

    def truncate(self, end: int) -> None:
        """Drop the positions from ``end`` on."""
        if not self.start < end <= self.end:
            raise DecoderError(f"a canvas of {self.start} to {self.end} cannot end at {end}")
        self.tokens, self.masked = self.tokens[:end].copy(), self.masked[:end].copy()
        self.stored = self.stored[:end].copy()
        self.shown_end = min(self.shown_end, end)
