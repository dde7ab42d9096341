"""Networks that make one row from several tokens, and several tokens from one row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from paradecode.core.network import Network, Op
from paradecode.methods.trained import TrainedPart, layer_shapes, layer_steps, linear, rms_norm


class TokenGroups(TrainedPart):
    """Three networks of width D (arXiv 2505.20438).

    ``merge`` makes a row of a group's embeddings ``x`` [n, D]: their ``mean``, which asks each of
    them by attention. ``unroll`` is a small decoder over the model's states at a row and the
    embeddings of what this row has written so far, ``x``; its last row says the next token.
    ``ends`` is the chance that what a state ``x`` says ends its group.
    """

    kind, field = "token groups 1", "parts"
    sizes: ClassVar = {
        "layers": 1 << 10, "hidden_size": 1 << 16, "heads": 1 << 10, "inner": 1 << 18,
        "blocks": 64, "most": 64,
    }  # fmt: skip

    @staticmethod
    def wrong(facts: Mapping[str, Any]) -> str | None:
        odd = facts["hidden_size"] % (2 * facts["heads"])
        return "its hidden_size is no multiple of 2 * heads" if odd else None

    @staticmethod
    def shapes(facts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        d, f, half = facts["hidden_size"], facts["inner"], facts["hidden_size"] // 2
        made: dict[str, tuple[int, ...]] = {
            "merge.places": (facts["most"], half), "merge.q": (d, d), "merge.k": (d + half, d),
            "merge.v": (d + half, d), "merge.o": (d, d), "ends.w1": (d, d), "ends.w2": (d, d),
            "ends.w3": (d, 1), **dict.fromkeys(("ends.b1", "ends.b2"), (d,)), "ends.b3": (1,),
        }  # fmt: skip
        for block in range(facts["blocks"]):
            made |= layer_shapes(f"{block}.", d, f)
        return made

    @staticmethod
    def taps(facts: Mapping[str, Any]) -> tuple[int, ...]:
        """The layers whose states are read: the last of each quarter of the model."""
        return tuple(sorted({max(facts["layers"] * part // 4 - 1, 0) for part in (1, 2, 3, 4)}))

    @cached_property
    def merge(self) -> Network:
        width = self.facts["hidden_size"]
        places = dict.fromkeys(("places", "zeros", "outside"), 0)
        return self._network({"x": width, "mean": width} | places, merge_steps(self.facts))

    @cached_property
    def unroll(self) -> Network:
        width = self.facts["hidden_size"]
        return self._network({"x": width, "places": 0}, unroll_steps(self.facts))

    @cached_property
    def ends(self) -> Network:
        return self._network({"x": self.facts["hidden_size"]}, END_STEPS)

    def _network(self, inputs: Mapping[str, int], steps: tuple[Op, ...]) -> Network:
        read = {name: self.tensors[name] for step in steps for name in step.tensors}
        return Network(inputs, steps, read)


def merge_steps(facts: Mapping[str, Any]) -> tuple[Op, ...]:
    """Steps of ``merge``. ``outside`` is 1 for rows that pad a group, else 0. ``zeros`` keeps rows
    unrotated."""
    return (
        Op("place", "lookup", ("places",), ("merge.places",)),
        Op("word", "join", ("x", "place")),
        *linear("q", "mean", "merge.q"),
        *(step for name in "kv" for step in linear(name, "word", f"merge.{name}")),
        Op("mixed", "attention", ("q", "k", "v", "zeros", "outside"), (), facts["heads"], 1.0),
        *linear("added", "mixed", "merge.o"),
        Op("row", "add", ("mean", "added")),
    )


def unroll_steps(facts: Mapping[str, Any]) -> tuple[Op, ...]:
    """Steps of ``unroll``: Llama layers, causal over ``places``; each row of ``x`` is first
    scaled to size 1."""
    steps, how = rms_norm("0", "x"), (("places", "places"), facts["heads"])
    for block in range(facts["blocks"]):
        steps += layer_steps(f"{block + 1}", f"{block}", f"{block}.", *how)
    return steps


END_STEPS = (
    *rms_norm("unit", "x"),
    *linear("one", "unit", "ends.w1", "ends.b1"),
    Op("open", "silu", ("one",)),
    *linear("two", "open", "ends.w2", "ends.b2"),
    Op("opener", "silu", ("two",)),
    *linear("logit", "opener", "ends.w3", "ends.b3"),
    Op("chance", "sigmoid", ("logit",)),
)
