"""Some layers of the target draft for the whole target, or decode in its place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.decoder import TARGET, Forward, Reply, Steps, TokenSequence
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import Proposal, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.source import Source
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import choice, method, parameter


def spread(total: int, kept: int) -> tuple[int, ...]:
    """``kept`` layers at even distances, the first and the last layer included."""
    if kept == 1:
        return (0,)
    return tuple(np.round(np.linspace(0, total - 1, kept)).astype(int).tolist())


def first(total: int, kept: int) -> tuple[int, ...]:
    """The first ``kept`` layers: early exit."""
    return tuple(range(kept))


PATTERNS = {"spread": spread, "exit": first}


@drafter(
    "layer-skip",
    paper="LayerSkip / Draft & Verify",
    arxiv="2404.16710",
    aliases=("layer_skip", "layerskip", "self-speculation", "draft-and-verify"),
)
@dataclass
class LayerSkip(ModelDrafter):
    """A fixed part of the target's layers drafts; keys and values are the target's own.

    ``exit`` keeps the first layers (Elhoushi et al. 2024, meant for models trained for it);
    ``spread`` leaves layers out evenly (Zhang et al. 2023, arXiv 2309.08168).

    When: the model was trained to exit early (``pattern=exit``), or is so large that it hardly
    misses some layers. Small dense models need theirs all.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(TARGET,), rests=True)

    skip: float = parameter(0.4, 0.0, 0.95, "share of the layers that the draft leaves out")
    pattern: str = choice("spread", tuple(PATTERNS), "which layers stay")
    width: int = parameter(2, 1, 16, "candidates of each node; 1 drafts a chain")

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        total = seq.about().layers
        layers = PATTERNS[self.pattern](total, max(1, round(total * (1 - self.skip))))
        calibration = seq.shared(f"layer-skip {layers}", Calibration)
        return self.grow(seq, limit, Source(layers=layers), self.width, calibration)


# Unified layer skipping: some layers stand in for all of them. This is lossy.


@method(
    "unified-layer-skip",
    paper="Unified Layer Skipping",
    arxiv="2404.06954",
    url="https://github.com/Adaxry/Unified_Layer_Skipping",
    guarantee="lossy",
    aliases=("unified_layer_skip",),
)
@dataclass
class UnifiedLayerSkip:
    """Only evenly spread layers decode; nothing verifies them (Liu et al. 2024).

    The prompt runs through all layers. The paper copies the keys and values of skipped layers from
    a lower one so that shapes stay equal; here they are never read, so they are not written.

    When: an approximate answer is good enough, and you have measured how good it is.
    """

    speedup: float = parameter(2.0, 1.0, 8.0, "layers of the model over layers that decode")

    def decode(self, seq: TokenSequence) -> Steps:
        total = seq.about().layers
        kept = max(1, int(total / self.speedup))
        layers = None if kept == total else spread(total, kept)
        reply: Reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))
        while not seq.finished:
            reply = yield Forward(seq.pending, layers=layers)
            seq.commit(coupled(seq, EMPTY, reply))
