"""SWIFT: a search, while decoding, for the halves of layers that a draft can skip."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TARGET, Forward, Reply, Store, TokenSequence
from paradecode.core.layers import Half, Layers
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import Proposal, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.source import Source
from paradecode.methods.parts import parameter

BAYES_EVERY, POOL, REMEMBERED, KAPPA = 25, 256, 128, 2.5
TOLERANCE, GOOD_ENOUGH = 100, 0.95


class LayerSearch:
    """The best set of kept sub-layers so far, for all requests of a tenant.

    Sets are bool vectors [2 * layers] in the order in which the sub-layers run: the attention of
    layer 0, its MLP, the attention of layer 1. The first layer and the last are always kept whole.

    Args:
        layers: number of layers of the model.
        skip: share of the sub-layers between the first layer and the last that every set leaves
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
        """Whether to stop searching."""
        choices = 0 < self.skipped < len(self.kept) - 4
        tired = self.trials >= most or self.stale >= TOLERANCE
        return not choices or tired or self.score >= GOOD_ENOUGH

    def candidate(self) -> NDArray[np.bool_]:
        """The set to try next: first the set in use, then random sets, now and then a promising
        one."""
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
        """The set with the highest upper confidence bound under a Gaussian process over sets."""
        seen, scores = np.array(self._sets), np.array(self._scores)
        spread = max(float(scores.std()), 1e-3)
        among = _kernel(seen, seen) + 1e-2 * np.eye(len(seen))
        across = _kernel(np.array(pool), seen)
        weights = np.linalg.solve(among, across.T).T
        mean = weights @ (scores - scores.mean()) / spread
        variance = np.maximum(1.0 - (weights * across).sum(axis=1), 0.0)
        return pool[int(np.argmax(mean + KAPPA * np.sqrt(variance)))]


def _kernel(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Similarity of sets: it falls by half for every eight sub-layers in which they differ."""
    return np.exp2(-(a[:, None, :] != b[None, :, :]).sum(axis=2) / 8.0)


def runs_of(kept: NDArray[np.bool_]) -> Layers:
    """The layers and halves that a forward of a set runs."""
    layers: list[int | Half] = []
    for layer, (attends, feeds) in enumerate(kept.reshape(-1, 2).tolist()):
        if attends and feeds:
            layers.append(layer)
        elif attends or feeds:
            layers.append(Half(layer, "attention" if attends else "mlp"))
    return tuple(layers)


@drafter("swift", paper="SWIFT", arxiv="2410.06916", url="https://github.com/hemingkx/SWIFT")
@dataclass
class Swift(ModelDrafter):
    """Self-speculation that searches, while it decodes, which layers to skip (Xia et al. 2025).

    Sub-layers, the attention and the MLP of each layer, are skipped each for itself; the first
    layer and the last stay whole. The search starts without every second layer. All sets leave out
    equally many sub-layers, and a set is scored by how many of the last ``window`` tokens it would
    have predicted, in one forward over them all.

    When: a large model, long outputs and no draft model at hand. The default model has no layers to
    spare.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(TARGET,), rests=True)

    skip: float = parameter(
        0.45, 0.0, 0.9, "share of the sub-layers between first and last that the draft leaves out"
    )
    interval: int = parameter(4, 1, 1024, "steps between two trials of a set")
    trials: int = parameter(200, 0, 10000, "most trials")
    window: int = parameter(32, 1, 256, "tokens a set is scored on")
    width: int = parameter(3, 1, 16, "candidates of each node; 1 drafts a chain")
    _steps: int = 0

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        total = seq.about().layers
        skip = round(self.skip, 2)  # Settings that hardly differ search together.
        search = seq.shared(f"swift {total} {skip}", lambda: LayerSearch(total, skip))
        self._steps += 1
        enough = len(seq.tokens) - seq.prompt_length > self.window
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
        """Share of the last ``window`` tokens that this set would choose, each behind the true
        text."""
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
