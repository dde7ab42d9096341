"""Replacements for layers that a token does not run: the layers' last outputs and a LoRA."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from paradecode.core.network import Network, Op
from paradecode.methods.trained import TrainedPart


class DropAdapters(TrainedPart):
    """A LoRA for each layer that may be dropped; the fact ``dropped`` lists these, ascending."""

    kind, field = "dropped layers 1", "adapters"
    sizes: ClassVar = {"layers": 1 << 10, "hidden_size": 1 << 16, "rank": 1 << 10}

    @staticmethod
    def wrong(facts: Mapping[str, Any]) -> str | None:
        inner, dropped = range(1, facts["layers"] - 1), facts.get("dropped")
        known = (
            isinstance(dropped, list)
            and all(type(at) is int for at in dropped)
            and dropped == [at for at in inner if at in dropped]
        )
        return None if known and dropped else "it must drop inner layers, and name them in order"

    @staticmethod
    def shapes(facts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        width, rank, dropped = facts["hidden_size"], facts["rank"], facts["dropped"]
        down = {f"{at}.a": (width, rank) for at in dropped}
        return down | {f"{at}.b": (rank, width) for at in dropped}

    @cached_property
    def pieces(self) -> list[tuple[tuple[int, ...], Network | None]]:
        """Runs of layers, from the first to the last; each dropped run has a network that replaces
        it.

        The network's inputs are ``x``, the input of the run, and the last output of each of its
        layers, under the layer's number.
        """
        dropped = self.facts["dropped"]
        runs = groupby(range(self.facts["layers"]), dropped.__contains__)
        return [
            (layers, self._instead(layers) if drops else None)
            for drops, layers in ((drops, tuple(run)) for drops, run in runs)
        ]

    def _instead(self, layers: tuple[int, ...]) -> Network:
        steps, x, width = list[Op](), "x", self.facts["hidden_size"]
        for at in layers:
            low, high = f"{at}.low", f"{at}.high"
            steps += [
                Op(low, "linear", (x,), (f"{at}.a",)),
                Op(high, "linear", (low,), (f"{at}.b",)),
            ]
            steps.append(Op(x := f"{at}.out", "add", (str(at), high)))
        return Network(dict.fromkeys(("x", *map(str, layers)), width), tuple(steps), self.tensors)
