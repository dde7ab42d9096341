"""The trained networks of budgets: SpecDec++'s head, and the selector of delayed trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from paradecode.core.network import Op
from paradecode.methods.draft.budgets.shapes import Action, actions
from paradecode.methods.trained import TrainedPart, linear, rms_norm

HIDDEN, ESTIMATES = "states", "estimates"
"""Names of a head's kinds of input: hidden states, or features of a token without a draft model."""

MOST_BLOCKS = 16
MOST_NODES = 64
"""The most nodes of a tree shape that a selector scores, which is the size of the largest draft."""

PROJECTED, INNER, LATER = 128, 512, 32
"""Widths of the selector's layers: the projection of each state, and two inner layers."""

SCALARS = (
    "entropy of p before", "entropy of q before", "entropy of q now",
    "KL(p || q) before", "KL(q || p) before", "log context length",
    "temperature", "top_p", "log seconds of a draft forward", "log seconds of a target forward",
)  # fmt: skip
STATES = ("p_before", "q_before", "q_now")


class ResidualHead(TrainedPart):
    """Predicts whether a draft token is accepted if its ancestors are, from the token's features.

    The network applies x + SiLU(W x + b) ``blocks`` times, then a linear layer (Huang et al. 2024,
    arXiv 2405.19715). All blocks share W and b, as in the released code. The paper's softmax over
    two outputs equals the sigmoid of their difference, so there is one output. The input ``x`` is
    [N, H], and the output, a probability, is [N, 1].
    """

    kind = "acceptance head 1"
    field = "acceptance_head"
    sizes: ClassVar = {"width": 1 << 13}

    def wrong(self) -> str | None:
        blocks, reads = self.facts.get("blocks"), self.facts.get("reads")
        if type(blocks) is not int or not 0 <= blocks <= MOST_BLOCKS:
            return f"its blocks is {blocks!r:.40}, not from 0 to {MOST_BLOCKS}"
        return None if reads in (HIDDEN, ESTIMATES) else f"it reads {reads!r:.40}"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.facts["width"]
        vectors = dict.fromkeys(("mean", "scale", "bias"), (width,))
        return {**vectors, "weight": (width, width), "out": (width + 1,)}

    def inputs(self) -> dict[str, int]:
        return {"x": self.facts["width"]}

    def steps(self) -> tuple[Op, ...]:
        steps = [*rms_norm("unit", "x")] if self.facts["reads"] == HIDDEN else []
        steps.append(Op("x0", "standardise", ("unit" if steps else "x",), ("mean", "scale")))
        for block in range(self.facts["blocks"]):
            x = f"x{block}"
            steps += linear(f"y{block}", x, "weight", "bias")
            steps.append(Op(f"z{block}", "silu", (f"y{block}",)))
            steps.append(Op(f"x{block + 1}", "add", (x, f"z{block}")))
        steps += linear("logit", f"x{self.facts['blocks']}", "out.weight", "out.bias")
        return (*steps, Op("chance", "sigmoid", ("logit",)))

    @staticmethod
    def weights(tensors: Mapping[str, Any]) -> dict[str, Any]:
        out = tensors["out"]
        rest = {name: values for name, values in tensors.items() if name != "out"}
        return {**rest, "out.weight": out[:-1, None], "out.bias": out[-1:]}


class TreeSelector(TrainedPart):
    """Scores every tree shape by an MLP. The shape with the highest score is taken.

    Thomas et al. 2026 (arXiv 2602.16994). Each hidden state goes through a linear layer to 128
    values and a LayerNorm. The results and the scalars go through 512 and 32 GELU units (tanh form)
    to one score for each of ``choices(count)``.

    Hidden states are brought to unit scale first. Divergences are summed over 64 tokens, and are 0
    if the draft model has a vocabulary of its own. The paper's "positional information" is the
    context length. Scalars that did not vary in training are ignored.

    Inputs are the fields of ``Situation``. The output is [N, actions].
    """

    kind = "tree selector 1"
    field = "tree_selector"
    sizes: ClassVar = {"count": MOST_NODES, "p_before": 1 << 14, "q_now": 1 << 14}

    def wrong(self) -> str | None:
        fits = self.facts.get("scalars") == list(SCALARS)
        return None if fits else "it reads other scalars than this version"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        widths = self.inputs()
        found: dict[str, tuple[int, ...]] = {"mean": (len(SCALARS),), "scale": (len(SCALARS),)}
        for name in STATES:
            found[f"{name}.weight"] = (widths[name], PROJECTED)
            found |= {f"{name}.{vector}": (PROJECTED,) for vector in ("bias", "gain", "shift")}
        width, options = len(SCALARS) + len(STATES) * PROJECTED, len(choices(self.facts["count"]))
        for name, size in (("inner", INNER), ("later", LATER), ("out", options)):
            found |= {f"{name}.weight": (width, size), f"{name}.bias": (size,)}
            width = size
        return found

    def inputs(self) -> dict[str, int]:
        p, q = self.facts["p_before"], self.facts["q_now"]
        return {"p_before": p, "q_before": q, "q_now": q, "scalars": len(SCALARS)}

    def steps(self) -> tuple[Op, ...]:
        steps = [Op("known", "standardise", ("scalars",), ("mean", "scale"))]
        for name in STATES:
            steps += rms_norm(f"{name} unit", name)
            steps += linear(f"{name} seen", f"{name} unit", f"{name}.weight", f"{name}.bias")
            steps.append(Op(f"{name} centred", "centre", (f"{name} seen",)))
            steps += rms_norm(f"{name} normed", f"{name} centred", f"{name}.gain", 1e-5)
            steps.append(Op(f"{name} read", "shift", (f"{name} normed",), (f"{name}.shift",)))
        steps.append(Op("all", "join", ("known", *(f"{name} read" for name in STATES))))
        x = "all"
        for layer in ("inner", "later"):
            steps += linear(layer, x, f"{layer}.weight", f"{layer}.bias")
            x = f"{layer} active"
            steps.append(Op(x, "gelu", (layer,)))
        return (*steps, *linear("scores", x, "out.weight", "out.bias"))


def choices(count: int) -> list[Action]:
    """Return the shapes that a selector scores: none, and all of at most ``count`` nodes."""
    return [Action(1, 0, 0), *actions(count)]
