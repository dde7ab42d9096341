"""Plain decoding: one token per forward pass, the baseline of every comparison.

The native core makes such steps in ``csrc/steps.cpp``.
"""

from __future__ import annotations

from paradecode.core.decoder import Forward, Steps, TokenSequence
from paradecode.core.multi_step import MultiStep
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.methods.parts import method

MULTI_STEP = MultiStep()


@method("greedy", paper="plain autoregressive decoding", aliases=("none", "plain", "sample"))
class Plain:
    """Emit one token per forward pass; ``exact`` methods must emit the same tokens.

    When: as the reference, and where no draft is worth its time: large batches of text that repeats
    nothing.
    """

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            if (yield MULTI_STEP).count:
                continue
            reply = yield Forward(seq.pending)
            seq.commit(coupled(seq, EMPTY, reply))
