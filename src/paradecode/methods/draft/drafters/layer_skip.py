"""Methods in which some layers of the target draft for the whole target, or decode in its place."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import (
    TARGET,
    Forward,
    ModelFacts,
    Reply,
    Steps,
    Store,
    TokenSequence,
    Verdict,
)
from paradecode.core.layers import Half, Layers
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.contracts import Proposal, Seconds
from paradecode.methods.draft.loop import Budget, Needs, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.source import Source
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import choice, method, parameter


def spread(total: int, kept: int) -> tuple[int, ...]:
    """Return ``kept`` evenly spaced layers, the first and the last layer included."""
    if kept == 1:
        return (0,)
    return tuple(np.round(np.linspace(0, total - 1, kept)).astype(int).tolist())


def first(total: int, kept: int) -> tuple[int, ...]:
    """Return the first ``kept`` layers (early exit)."""
    return tuple(range(kept))


PATTERNS = {"spread": spread, "exit": first}


@drafter(
    "layer-skip",
    paper="LayerSkip / Draft & Verify",
    arxiv="2404.16710",
    aliases=("layer_skip", "layerskip", "self-speculation", "draft-and-verify"),
)
class LayerSkip(ModelDrafter):
    """Some fixed layers of the target draft; keys and values are the target's own.

    ``exit`` uses the first layers (Elhoushi et al. 2024, meant for models trained for it).
    ``spread`` leaves layers out evenly (Zhang et al. 2023, arXiv 2309.08168).

    When: the model was trained to exit early (``pattern=exit``), or is so large that it can do
    without some layers. Small dense models need all of their layers.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(TARGET,), rests=True)

    skip: float = parameter(0.4, 0.0, 0.95, "share of the layers that the draft leaves out")
    pattern: str = choice("spread", tuple(PATTERNS), "which layers the draft keeps")
    width: int = parameter(2, 1, 16, "number of candidates of each node; 1 drafts a chain")

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        total = seq.about().layers
        layers = PATTERNS[self.pattern](total, max(1, round(total * (1 - self.skip))))
        calibration = seq.shared(f"layer-skip {layers}", Calibration)
        return self.grow(seq, limit, Source(layers=layers), self.width, calibration)


# Unified layer skipping: some layers decode in place of the whole model. This is lossy.


@method(
    "unified-layer-skip",
    paper="Unified Layer Skipping",
    arxiv="2404.06954",
    url="https://github.com/Adaxry/Unified_Layer_Skipping",
    guarantee="lossy",
    aliases=("unified_layer_skip",),
)
class UnifiedLayerSkip:
    """Only evenly spread layers decode; nothing verifies their tokens (Liu et al. 2024).

    The prompt runs through all layers. The paper copies the keys and values of skipped layers from
    a lower layer so that shapes stay equal. Here they are never read, so they are not written.

    When: an approximate answer is good enough, and you have measured how good it is.
    """

    speedup: float = parameter(2.0, 1.0, 8.0, "ratio of the model's layers to those that decode")

    def decode(self, seq: TokenSequence) -> Steps:
        total = seq.about().layers
        kept = max(1, int(total / self.speedup))
        layers = None if kept == total else spread(total, kept)
        reply: Reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))
        while not seq.finished:
            reply = yield Forward(seq.pending, layers=layers)
            seq.commit(coupled(seq, EMPTY, reply))


# SWIFT: a search, while decoding, for the sub-layers (attention, MLP) that a draft can skip.

BAYES_EVERY, POOL, REMEMBERED, KAPPA = 25, 256, 128, 2.5
TOLERANCE, GOOD_ENOUGH = 100, 0.95


class LayerSearch:
    """Searches the best set of sub-layers for drafting, for all requests of a tenant.

    A sub-layer is the attention or the MLP of a layer. A set is a bool vector [2 * layers], True
    for sub-layers that run, in the order in which they run: the attention of layer 0, its MLP, the
    attention of layer 1. The first layer and the last layer always run whole.

    Args:
        layers: number of layers of the model.
        skip: share of the sub-layers between the first and the last layer that every set leaves
            out.
    """

    def __init__(self, layers: int, skip: float) -> None:
        self.kept = np.ones(2 * layers, bool)
        between = max(layers - 2, 0)
        self.skipped = round(skip * 2 * between)
        order = [*range(1, 1 + between, 2), *range(2, 1 + between, 2)]
        halves = [half for layer in order for half in (2 * layer, 2 * layer + 1)]
        self.kept[halves[: self.skipped]] = False
        self.score, self.trials, self.stale = -1.0, 0, 0
        self._sets: list[NDArray[np.bool_]] = []
        self._scores: list[float] = []
        self._random = np.random.default_rng(0)
        self.calibration = Calibration()

    @property
    def layers(self) -> Layers:
        return runs_of(self.kept)

    def settled(self, most: int) -> bool:
        """Return whether to stop searching; ``most`` is the most trials."""
        choices = 0 < self.skipped < len(self.kept) - 4
        tired = self.trials >= most or self.stale >= TOLERANCE
        return not choices or tired or self.score >= GOOD_ENOUGH

    def candidate(self) -> NDArray[np.bool_]:
        """Return the set to try next: first the set in use, then random ones.

        Every :data:`BAYES_EVERY` trials a promising set is tried in place of a random one.
        """
        if self.trials == 0:
            return self.kept
        if self.trials % BAYES_EVERY:
            return self._any()
        return self._promising([self._any() for _ in range(POOL)])

    def book(self, kept: NDArray[np.bool_], score: float) -> None:
        self.trials += 1
        self.stale += 1
        self._sets, self._scores = [*self._sets, kept][-REMEMBERED:], [*self._scores, score]
        self._scores = self._scores[-REMEMBERED:]
        if score > self.score:
            if not np.array_equal(kept, self.kept):
                self.calibration = Calibration()
            self.kept, self.score, self.stale = kept, score, 0

    def _any(self) -> NDArray[np.bool_]:
        kept = np.ones(len(self.kept), bool)
        kept[2 + self._random.permutation(len(kept) - 4)[: self.skipped]] = False
        return kept

    def _promising(self, pool: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return the set with the highest upper confidence bound under a Gaussian process."""
        seen, scores = np.array(self._sets), np.array(self._scores)
        spread = max(float(scores.std()), 1e-3)
        among = _kernel(seen, seen) + 1e-2 * np.eye(len(seen))
        across = _kernel(np.array(pool), seen)
        weights = np.linalg.solve(among, across.T).T
        mean = weights @ (scores - scores.mean()) / spread
        variance = np.maximum(1.0 - (weights * across).sum(axis=1), 0.0)
        return pool[int(np.argmax(mean + KAPPA * np.sqrt(variance)))]


def _kernel(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the similarity of sets, which halves for every eight sub-layers that differ."""
    return np.exp2(-(a[:, None, :] != b[None, :, :]).sum(axis=2) / 8.0)


def runs_of(kept: NDArray[np.bool_]) -> Layers:
    """Return the layers and half layers that a forward pass with the set ``kept`` runs."""
    layers: list[int | Half] = []
    for layer, (attends, feeds) in enumerate(kept.reshape(-1, 2).tolist()):
        if attends and feeds:
            layers.append(layer)
        elif attends or feeds:
            layers.append(Half(layer, "attention" if attends else "mlp"))
    return tuple(layers)


@drafter("swift", paper="SWIFT", arxiv="2410.06916", url="https://github.com/hemingkx/SWIFT")
class Swift(ModelDrafter):
    """Self-speculation that searches, while it decodes, which layers to skip (Xia et al. 2025).

    Attention and MLP of each layer are skipped independently; the first layer and the last layer
    always run. The search starts with the set that leaves out every second layer. All sets leave
    out the same number of sub-layers. The score of a set is the share of the last ``window`` tokens
    that it would have predicted, measured in one forward pass over all of them. If layers attend
    only to a window, the keys for that forward are gone, and the first set stays.

    When: a large model, long outputs and no draft model at hand. The default model has no layers to
    spare.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(TARGET,), rests=True)

    skip: float = parameter(
        0.45, 0.0, 0.9, "share of the sub-layers, but for first and last, that the draft leaves out"
    )
    interval: int = parameter(4, 1, 1024, "number of steps between two trials of a set of layers")
    trials: int = parameter(200, 0, 10000, "most trials of sets")
    window: int = parameter(32, 1, 256, "number of tokens on which a set is scored")
    width: int = parameter(3, 1, 16, "number of candidates of each node; 1 drafts a chain")
    _steps: int = 0

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        facts = seq.about()
        total = facts.layers
        skip = round(self.skip, 2)  # Requests whose settings hardly differ share a search.
        search = seq.shared(f"swift {total} {skip}", lambda: LayerSearch(total, skip))
        self._steps += 1
        enough = not facts.window and len(seq.tokens) - seq.prompt_length > self.window
        if enough and self._steps % self.interval == 0 and not search.settled(self.trials):
            kept = search.candidate()
            score = yield from self._matchness(seq, kept)
            search.book(kept, score)
        source = Source(layers=search.layers)
        tree = yield from self.grow(seq, limit, source, self.width, search.calibration)
        return tree

    def _matchness(
        self, seq: TokenSequence, kept: NDArray[np.bool_]
    ) -> Generator[Forward, Reply, float]:
        """Return the share of the last ``window`` tokens that this set of layers would choose.

        Each token is predicted from the true text before it.
        """
        length = len(seq.tokens)
        rows = np.arange(length - self.window - 1, length - 1, dtype=np.int32)
        text = seq.tokens.copy()
        reply = yield Forward(
            text[rows],
            store=Store.NONE,
            positions=rows,
            visible=np.arange(rows[0], dtype=np.int32),
            logits=np.arange(self.window, dtype=np.int32),
            layers=runs_of(kept),
        )
        keys = [seq.sampler.noise_key(int(row) + 1 - length) for row in rows]
        chosen = reply.logits.sample(seq.sampler.warp, keys)
        return float((chosen == text[rows + 1]).mean())


# DEL: chooses the exit layer and the draft length that give the most tokens per second.

MEMORY = 0.95

MOST_ROWS = 8
"""The most rows of one verification whose early-exit predictions are computed.

More rows learn faster, but each costs a row of the LM head at every exit.
"""

IDLE = 8
"""Factor on the number of steps between two trials while no exit saves time.

A higher value costs less, and notices later that an exit saves time.
"""


class EarlyExits:
    """Records how often each exit layer agrees with the target, and its probabilities."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        # Column 0: the exit was wrong; column 1: it was right. All exits begin with equal counts.
        self.count = np.full((len(layers), 2), 0.5)
        self.confidence = np.full((len(layers), 2), 0.25)

    def update(self, right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> None:
        """Record a verification.

        Args:
            right: bool [E, R], True if an exit (of E) chose the target's token (of R).
            confidence: float64 [E, R], the probability that each exit gave to its choice.
        """
        self.count *= MEMORY
        self.confidence *= MEMORY
        for column, which in enumerate((~right, right)):
            self.count[:, column] += which.sum(axis=1)
            self.confidence[:, column] += (which * confidence).sum(axis=1)

    def best(self, facts: ModelFacts, longest: int, rests: bool = True) -> tuple[int, int, float]:
        """Return exit layer, draft length and threshold with the most tokens per layer run.

        A draft stops at a token whose probability is below the threshold.

        Args:
            longest: the longest draft, in tokens.
            rests: True if shorter drafts, and no draft, may be chosen.
        """
        least = 0 if rests else longest
        head = facts.head_layers
        alpha = self.count[:, 1] / self.count.sum(axis=1)
        lengths = np.arange(longest + 1)
        tokens = np.cumsum(alpha[:, None] ** lengths, axis=1)[:, least:]
        exits = np.array(self.layers)[:, None] + 1
        work = facts.layers + head + lengths[least:] * (exits + head)
        place, length = np.unravel_index(int(np.argmax(tokens / work)), tokens.shape)
        means = self.confidence[place] / self.count[place]
        return self.layers[place], least + int(length), float(means.mean())


@dataclass
class WhileSure(Budget):
    """A budget for a chain, which ends with the first token less probable than ``threshold``."""

    drafter: ModelDrafter
    threshold: float

    def expand(
        self, seq: TokenSequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        sure = [leaf == ROOT or self.drafter.confidence(leaf) >= self.threshold for leaf in leaves]
        return super().expand(seq, tree, leaves[np.array(sure, bool)], seconds)


@drafter("del", paper="DEL", arxiv="2504.05598", aliases=("dynamic-exit-layer",))
class Del(ModelDrafter):
    """Early-exit self-speculation with the exit and length of most expected tokens per layer.

    Zarch et al. 2025. A verification computes the hidden states of every layer. Through the LM head
    they give the tokens that each exit would have drafted (its shadow tokens).

    The paper compares every layer, and begins with 32 rows of the prompt. Here ``exits`` layers and
    at most 8 rows are compared. All 29 exits of the default model, with 8 rows, would be 232 rows
    of its LM head, as much work as 49 rows of the whole model.

    When: the model was trained for early exit. The first layers of other models predict little: the
    default model gets slower.
    """

    needs = Needs(noise=True, draws=True, runs=(TARGET,), rests=True)

    exits: int = parameter(4, 1, 64, "number of exit layers to choose from, at even distances")
    interval: int = parameter(1, 1, 64, "number of steps between two comparisons of the exits")
    _exits: EarlyExits | None = field(default=None, repr=False)
    _states: NDArray[np.float32] | None = field(default=None, repr=False)
    _tokens: list[int] = field(default_factory=list)
    _start: int = 0
    _steps: int = 0

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        facts = seq.about()
        if self._exits is None:
            count = max(1, min(self.exits, facts.layers - 1))
            places = np.linspace(0, facts.layers - 1, count + 1)[:-1]
            layers = tuple(sorted({int(place) for place in places}))
            self._exits = seq.shared(f"del {layers}", lambda: EarlyExits(layers))
        if self._states is not None:
            yield from self._look(seq, self._exits, self._states)
            self._states = None
        layer, length, threshold = self._exits.best(facts, limit, self.offer.budget.weighs)
        self._steps += 1
        interval = self.interval if length else IDLE * self.interval
        self.hidden = self._exits.layers if self._steps % interval == 0 else ()
        if length == 0:
            return EMPTY
        source = Source(layers=tuple(range(layer + 1)), hidden=self.hidden)
        until = WhileSure(length, self, threshold)
        return (yield from self.grow(seq, length, source, 1, budget=until))

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        super().observe(seq, tree, reply, verdict)
        if self.hidden and self._exits and reply.hidden.keys() >= set(self.hidden):
            # Logits have a row for the root and each node. Hidden states end with these rows.
            at = np.array(verdict.rows[:MOST_ROWS]) - (1 + len(tree))
            self._states = np.concatenate([reply.hidden[e][at] for e in self._exits.layers])
            self._tokens = verdict.tokens[:MOST_ROWS]
            self._start = len(seq.tokens)

    def _look(
        self, seq: TokenSequence, exits: EarlyExits, states: NDArray[np.float32]
    ) -> Generator[Forward, Reply, None]:
        """Run the LM head on the hidden states of the last verification. No layer runs for this."""
        rows, count = len(states), len(self._tokens)
        last = len(seq.tokens) - 1  # No window drops it.
        reply = yield Forward(
            np.zeros(rows, np.int32),
            resume=states,
            layers=(),
            store=Store.NONE,
            positions=np.full(rows, last, np.int32),
            logits=np.arange(rows, dtype=np.int32),
        )
        first = self._start - len(seq.tokens)
        keys = [seq.sampler.noise_key(first + offset) for offset in range(count)]
        shadow = reply.logits.sample(seq.sampler.warp, keys * len(exits.layers))
        confidence = np.exp(reply.logits.log_probability(shadow[:, None]))[:, 0]
        right = shadow.reshape(-1, count) == np.array(self._tokens)
        exits.update(right, confidence.reshape(-1, count))
