"""SWIFT: look for the halves of layers that can be skipped while decoding."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.request import TARGET, Forward, Reply, Store
from paradecode.core.sequence import TokenSequence
from paradecode.methods.draft.layer_search import LayerSearch, runs_of
from paradecode.methods.draft.loop import Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.source import Source
from paradecode.methods.parameters import parameter


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
        """Share of the last ``window`` tokens that this set chooses, each after true text."""
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
