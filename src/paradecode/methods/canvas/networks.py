"""The trained networks of canvas methods: Learn2PD's filter and ADJUST's layer."""

from __future__ import annotations

from typing import ClassVar

from paradecode.core.network import Op
from paradecode.methods.trained import TrainedPart, layer_shapes, layer_steps, linear, rms_norm


class UnmaskFilter(TrainedPart):
    """The probability that a proposal is final, computed from the confidences of a whole block.

    Two linear layers with a ReLU between them (arXiv 2509.25188; which function theirs has between
    its layers is not published). Input ``confidence`` [N, block], output [N, block].
    """

    kind = "unmask filter 1"
    field = "filter"
    sizes: ClassVar = {"block": 1 << 10, "width": 1 << 10}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        block, width = self.facts["block"], self.facts["width"]
        return {"w1": (block, width), "b1": (width,), "w2": (width, block), "b2": (block,)}

    def inputs(self) -> dict[str, int]:
        return {"confidence": self.facts["block"]}

    def steps(self) -> tuple[Op, ...]:
        return (
            *linear("hidden", "confidence", "w1", "b1"),
            Op("active", "relu", ("hidden",)),
            *linear("logit", "active", "w2", "b2"),
            Op("chance", "sigmoid", ("logit",)),
        )


class JointLayer(TrainedPart):
    """ADJUST (arXiv 2509.22738): how final states change when a masked token becomes known.

    A Llama layer over the projected embeddings of the tokens and the projected states. The paper's
    layer is as wide as the model and its output is added to the states as it is. Here the width is
    free, a matrix leads back to the D numbers of a state, states are those before the model's last
    norm (brought to unit scale on the way in, and scaled back on the way out), and the projected
    embeddings are kept as a table.

    Inputs: the present tokens of the canvas (``tokens`` [n]), the ``states`` [n, D], their
    ``positions`` [n], and ``groups`` [n]: a row sees rows of its own group and of lower ones.
    Output: the states [n, D] that the model would have if it had seen the tokens.
    """

    kind = "joint sampler 1"
    field = "layer"
    sizes: ClassVar = {
        "vocab_size": 1 << 21, "hidden_size": 1 << 14, "width": 1 << 13, "heads": 256,
        "inner": 1 << 15,
    }  # fmt: skip

    def wrong(self) -> str | None:
        fits = self.facts["width"] % (2 * self.facts["heads"]) == 0
        return None if fits else "its width is no multiple of 2 * heads"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, w, f = self.facts["hidden_size"], self.facts["width"], self.facts["inner"]
        return {
            "table": (self.facts["vocab_size"], w), "state": (d, w),
            **layer_shapes("", w, f),
            "out_norm": (w,), "out": (w, d),
        }  # fmt: skip

    def inputs(self) -> dict[str, int]:
        return {"tokens": 0, "states": self.facts["hidden_size"], "positions": 0, "groups": 0}

    def steps(self) -> tuple[Op, ...]:
        return (
            *rms_norm("unit", "states"),
            *linear("known", "unit", "state"),
            Op("word", "lookup", ("tokens",), ("table",)),
            Op("x", "add", ("word", "known")),
            *layer_steps("x3", "x", "", ("positions", "groups"), self.facts["heads"]),
            *rms_norm("h3", "x3", "out_norm"),
            *linear("change", "h3", "out"),
            Op("scaled", "multiply", ("change", "unit.rms")),
            Op("result", "add", ("states", "scaled")),
        )
