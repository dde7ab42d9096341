"""The canvas of a request, a policy's view of one forward pass, and the policy's decision."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.logits import Bias, Logits
from paradecode.core.noise import Purpose, gumbel, key, uniform
from paradecode.core.sampling import SamplingParams, penalties
from paradecode.methods.canvas.feasible import Marks, Positions, Rules, Tokens, rules_of

NOTHING = -1
"""The value in :attr:`Canvas.stored` for a position without cached keys and values."""


class Canvas:
    """The prompt and the output of a request as one sequence of N positions.

    Slot i of the K/V cache belongs to position i.

    Args:
        prompt: int32 [P].
        length: number of positions after the prompt; at first all are masked.
        mask_token: the token that the model reads at masked positions.
        block: 0 for full attention. For block-causal attention, the number of positions in a block:
            a position attends to its own block and to earlier blocks. 1 is causal attention.
        shift: True if the logits at position i predict position i + 1.

    Attributes:
        tokens: int32 [N], the mask token where masked.
        masked: bool [N]; needed because a prompt may contain the mask token.
        stored: int32 [N], the token from which the cached keys and values of a position were
            computed, or -1 if there are none.
        start: P, where the output begins.
        shown_end: one past the last position that the request may show. Later positions only fill
            up the last block of a block-causal model.
        origin: where blocks of fixed length begin: at P, or in a block-causal model at the start of
            the block that contains P.
        steps: number of forward passes so far.
        stops: token ids that end the text.
        layers, heads, vocab_size: sizes of the model.
        gives_attention: True if the model's forwards can return attention weights.
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
        """Build the canvas of a request, as long as ``max_tokens`` and the context length allow.

        In a block-causal model the canvas ends with a whole block.

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
        """Return an independent copy."""
        other = copy(self)
        other.tokens, other.masked = self.tokens.copy(), self.masked.copy()
        other.stored = self.stored.copy()
        return other

    @property
    def end(self) -> int:
        """N, which is one past the last position."""
        return len(self.tokens)

    @property
    def edge(self) -> int:
        """The first masked position, or N if none is left. All positions before it are decided."""
        masks = self.masked.argmax()
        return int(masks) if self.masked[masks] else self.end

    @property
    def final(self) -> Marks:
        """Bool [N]: True where a position is decided and cached with its present token."""
        return ~self.masked & (self.stored == self.tokens)

    @property
    def cached(self) -> Marks:
        """Bool [N]: True where keys and values are stored, which may be stale."""
        return self.stored != NOTHING

    def reach(self, end: int) -> int:
        """Return one past the last position to which positions before ``end`` may attend."""
        return min(-(-end // self.block) * self.block, self.end) if self.block else self.end

    def commit(self, positions: Positions, tokens: Tokens) -> None:
        """Write ``tokens`` at masked ``positions``, which are decided from now on.

        Raises:
            DecoderError: if a position is not masked or named twice, or a token is the mask token.
        """
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
        """Mask decided positions of the output again; raise DecoderError for any other position."""
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


# A policy's view of one forward, and its decision.

Scores = NDArray[np.float64]
NO_POSITIONS: Positions = np.empty(0, np.int64)


@dataclass(frozen=True)
class Window:
    """The positions whose masks may be decided: ``start`` to ``end`` (exclusive).

    Attributes:
        block: index of the block; caches refresh when it changes.
        span: start and end of the positions among which the block's planned steps are divided, if a
            sliding window is only a part of them.
        begin: where the block begins, if it begins inside the prompt.
    """

    start: int
    end: int
    block: int = 0
    span: tuple[int, int] | None = None
    begin: int | None = None

    @property
    def shared(self) -> slice:
        """The slice of positions among which the block's planned steps are divided."""
        return slice(*(self.span or (self.start, self.end)))


@dataclass(frozen=True)
class Progress:
    """Counts of a request's steps and masks.

    Attributes:
        steps: forward passes that the user plans for the whole canvas; by default one for each
            mask.
        step: number of forwards before this one.
        block_step: number of earlier forwards of this block.
        masks: number of masked positions of the canvas when decoding began.
        block_masks: number of masked positions of this block when the block began.
        before: the sum of ``block_masks`` over all earlier blocks.
    """

    steps: int
    step: int
    block_step: int
    masks: int
    block_masks: int
    before: int


@dataclass(frozen=True, eq=False)
class View:
    """The predictions of one forward pass for K positions; row k predicts ``positions[k]``.

    Attributes:
        canvas: the canvas before the decision; policies read it and never change it.
        window: the positions whose masks may be decided.
        positions: int64 [K], ascending; the positions that the policy observes.
        eligible: bool [K], True where the position is masked and in the window.
        proposals: int32 [K], the tokens that may be committed; never the mask token.
        confidence: float64 [K], probability of the proposal at temperature 1, after biases and
            penalties, before filters such as top-k. The mask token is banned.
        logits: [K, V], after biases and penalties, with the mask token at -inf.
        raw: [K, V], the model's own logits.
        progress: counts of steps and masks.
        refresh: True if this forward computed every row of the canvas.
        seed: seed of the request's random numbers (see :mod:`paradecode.core.noise`).
    """

    canvas: Canvas
    window: Window
    positions: Positions
    eligible: Marks
    proposals: Tokens
    confidence: Scores
    logits: Logits
    raw: Logits
    progress: Progress
    refresh: bool
    seed: int

    @cached_property
    def margin(self) -> Scores:
        """Float64 [K]: probability of the best token minus probability of the second best token."""
        return self.logits.margin()

    @cached_property
    def entropy(self) -> Scores:
        """Float64 [K]: the entropy of each position's distribution, in nats."""
        return self.logits.entropy()

    @cached_property
    def gap(self) -> Scores:
        """Float64 [K]: the best logit minus the second best logit."""
        values = self.logits.top_k(2)[1].astype(np.float64)
        return values[:, 0] - values[:, -1]

    @property
    def inside(self) -> Marks:
        """Bool [K]: True for positions in the window, masked or not."""
        return (self.positions >= self.window.start) & (self.positions < self.window.end)

    def uniform(self, step: int) -> Scores:
        """Return float64 [K]: random numbers in (0, 1), fixed by seed, step and position."""
        return uniform(key(self.seed, step, Purpose.ORDER), self.positions)

    def gumbel(self, step: int) -> Scores:
        """Return float64 [K]: Gumbel random numbers, fixed by seed, step and position."""
        return gumbel(key(self.seed, step, Purpose.ORDER), self.positions)

    def best(self, scores: NDArray[np.floating], count: int) -> Positions:
        """Return the ``count`` eligible positions with the highest scores, best first.

        Args:
            scores: [K]. Among equal scores the lowest position comes first.
        """
        rows = np.flatnonzero(self.eligible)
        order = np.argsort(-np.asarray(scores)[rows], kind="stable")
        return self.positions[rows[order[: max(count, 0)]]]

    def rows(self, positions: Positions) -> Positions:
        """Return int64: the index in :attr:`positions` of each of the given ``positions``."""
        return np.searchsorted(self.positions, positions)

    def within(self, window: Window) -> View:
        """Return a view of the same forward pass with another window."""
        inside = (self.positions >= window.start) & (self.positions < window.end)
        return replace(self, window=window, eligible=inside & self.canvas.masked[self.positions])

    def tokens(self, decision: Decision) -> Tokens:
        """Return int32: the token for each position that ``decision`` commits."""
        proposed = self.proposals.take(self.rows(decision.commit), mode="clip")
        return proposed if decision.tokens is None else decision.tokens

    def or_best(self, decision: Decision) -> Decision:
        """Return ``decision``; if it changes nothing, commit the most confident position."""
        if len(decision.commit) or len(decision.revoke):
            return decision
        return replace(decision, commit=self.best(self.confidence, 1), tokens=None)

    def and_also(self, decision: Decision, rows: NDArray[np.integer | np.bool_]) -> Decision:
        """Return ``decision`` with the proposals at the view's ``rows`` committed as well."""
        return replace(
            decision,
            commit=np.concatenate([decision.commit, self.positions[rows]]),
            tokens=np.concatenate([self.tokens(decision), self.proposals[rows]]),
        )


@dataclass(frozen=True, eq=False)
class Decision:
    """A policy's decision after a forward pass: the positions that change, and their tokens.

    Attributes:
        commit: masked, observed positions. If ``commit`` and ``revoke`` are empty, the most
            confident eligible position is committed, so that every forward makes progress.
        tokens: int32, one for each of ``commit``; by default the proposals.
        revoke: decided positions of the output that are masked again. A policy that revokes must
            declare it (:attr:`Policy.revises`).
        truncate: the canvas is cut before this position, because an end of text was found.
        refresh: True if the cache must recompute everything in the next forward.
    """

    commit: Positions = field(default_factory=lambda: NO_POSITIONS)
    tokens: Tokens | None = None
    revoke: Positions = field(default_factory=lambda: NO_POSITIONS)
    truncate: int | None = None
    refresh: bool = False


# Turns logits into a proposed token for each position.

Fuse = Callable[[Logits, Positions], Logits]
"""A function by which a policy changes the logits [K, V] of positions [K], after biases."""


def propose(
    seq: TokenSequence, canvas: Canvas, raw: Logits, positions: Positions, fuse: Fuse
) -> tuple[Tokens, Scores, Logits]:
    """Choose a token for each of ``positions`` [K] from the model's logits ``raw`` [K, V].

    Returns int32 [K] tokens, their probabilities float64 [K], and the logits from which the tokens
    were chosen.

    The steps, in order: the mask token is banned; biases and penalties are added (counting tokens
    that are decided anywhere on the canvas); ``fuse`` changes the logits; the constraint bans
    tokens after which the canvas could not be filled; temperature, top-k, top-p and min-p choose
    the token, with random numbers that are fixed by seed and position. A position with equal logits
    therefore always gets the same token, in any batch and with any policy. The returned probability
    is the one at temperature 1.
    """
    logits = fuse(raw.with_bias(_biases(seq, canvas, raw, positions)), positions)
    if canvas.rules is not None:
        logits = logits.with_bias(_bans(canvas, canvas.rules, positions))
    warp = seq.sampler.warp
    keys = [] if warp.temperature == 0 else [key(seq.sampler.seed, p) for p in positions.tolist()]
    tokens = logits.sample(warp, keys)
    confidence = np.exp(logits.log_probability(tokens[:, None])[:, 0])
    return tokens, confidence, logits


def _biases(
    seq: TokenSequence, canvas: Canvas, raw: Logits, positions: Positions
) -> list[Bias | None]:
    params = seq.params
    added = dict(params.logit_bias or {})
    added[canvas.mask_token] = -np.inf
    plain = early = _sparse(added)
    banned = (positions < canvas.start + params.min_tokens).tolist()
    if any(banned):
        early = _sparse({**added, **dict.fromkeys(seq.sampler.stop_ids.tolist(), -np.inf)})
    if not params.penalised:
        return [early if ban else plain for ban in banned]
    ids, changes = _penalties(params, canvas, raw)
    kinds = {ban: _joined(early if ban else plain, ids, changes) for ban in set(banned)}
    return [(kinds[ban][0], kinds[ban][1][row]) for row, ban in enumerate(banned)]


def _bans(canvas: Canvas, rules: Rules, positions: Positions) -> list[Bias | None]:
    """Return biases of minus infinity for tokens that the constraint forbids at each position."""
    allowed = rules.allowed(canvas.tokens, canvas.masked, positions)
    allowed[:, canvas.mask_token] = False
    forbidden = [np.flatnonzero(~row).astype(np.int32) for row in allowed]
    return [(ids, np.full(len(ids), -np.inf, np.float32)) for ids in forbidden]


def _sparse(added: dict[int, float]) -> Bias:
    return np.array([*added], np.int32), np.array([*added.values()], np.float32)


def _penalties(params: SamplingParams, canvas: Canvas, raw: Logits) -> Bias:
    """Return token ids [m] and the penalties on their logits at each position [K, m]."""
    decided = ~canvas.masked
    output = canvas.tokens[canvas.start :][decided[canvas.start :]]
    ids = np.unique(canvas.tokens[decided] if params.repetition_penalty != 1.0 else output)
    counts = (output[None, :] == ids[:, None]).sum(axis=1)
    values = raw.gather(np.tile(ids, (raw.shape[0], 1)))
    return ids, penalties(params, values, counts).astype(np.float32)


def _joined(bias: Bias, ids: Tokens, changes: NDArray[np.float32]) -> Bias:
    """Return the sum of a bias and ``changes`` [K, m], as token ids [n] and additions [K, n].

    ``changes`` belong to ascending token ``ids`` [m]. A banned token stays banned, because a finite
    change does not lift minus infinity.
    """
    every = np.union1d(bias[0], ids).astype(np.int32)
    total = np.zeros((len(changes), len(every)), np.float32)
    total[:, np.searchsorted(every, ids)] = changes
    total[:, np.searchsorted(every, bias[0])] += bias[1]
    return every, total
