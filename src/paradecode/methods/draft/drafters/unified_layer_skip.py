"""Unified layer skipping: some layers stand in for all of them. This is lossy."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.decoder import Forward, Reply, Steps, TokenSequence
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.drafters.layer_skip import spread
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import method, parameter


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
