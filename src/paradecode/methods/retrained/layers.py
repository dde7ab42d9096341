"""Methods that do not run all layers for a token: routers choose some, or adapters replace some."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import (
    Apply,
    Forward,
    Overwrite,
    Reply,
    Request,
    Steps,
    Store,
    TokenSequence,
)
from paradecode.core.network import Array, Network, Op
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.methods.parts import local_path, method, parameter
from paradecode.methods.trained import TrainedPart


class DropAdapters(TrainedPart):
    """A LoRA for each layer that may be dropped; the fact ``dropped`` lists these, ascending."""

    kind, field = "dropped layers 1", "adapters"
    sizes: ClassVar = {"layers": 1 << 10, "hidden_size": 1 << 16, "rank": 1 << 10}

    def wrong(self) -> str | None:
        inner, dropped = range(1, self.facts["layers"] - 1), self.facts.get("dropped")
        known = (
            isinstance(dropped, list)
            and all(type(at) is int for at in dropped)
            and dropped == [at for at in inner if at in dropped]
        )
        return None if known and dropped else "it must drop inner layers, and name them in order"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        width, rank, dropped = self.facts["hidden_size"], self.facts["rank"], self.facts["dropped"]
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


# Routers that read the prompt once and choose the layers that decode this sequence.

ROUTERS = "paradecode train first"


class Routers(TrainedPart):
    """A small router for each layer but the first: it says whether a text with this prompt needs
    the layer.

    Its input is what enters the layer at the prompt's last token, divided by the rms; it is linear.
    """

    kind = "layer routers 1"
    field = "routers"
    sizes: ClassVar = {"layers": 1 << 10, "hidden_size": 1 << 16}

    def wrong(self) -> str | None:
        return "it is for one layer" if self.facts["layers"] < 2 else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        routed = self.facts["layers"] - 1
        return {"weight": (routed, self.facts["hidden_size"]), "bias": (routed,)}

    def layers(self, entered: NDArray[np.floating], threshold: float) -> tuple[int, ...]:
        """The layers to keep; the first layer is always kept.

        Args:
            entered: float32 [layers - 1, hidden size], the input of each layer but the first.
        """
        entered = entered.astype(np.float64)  # Large weights do not overflow.
        rms = np.sqrt(np.square(entered).mean(1) + 1e-6)
        logits = (entered * self.tensors["weight"]).sum(1) / rms + self.tensors["bias"]
        kept = 1.0 / (1.0 + np.exp(-np.clip(logits, -60.0, 60.0))) >= threshold
        return (0, *(np.flatnonzero(kept) + 1).tolist())


@method("first", guarantee="lossy", training=ROUTERS, paper="FiRST", arxiv="2410.12513")
@dataclass
class FirstLayers:
    """Routers read the prompt and choose, once, the layers that decode this sequence.

    The prompt runs through all layers. Every token behind it runs through the chosen ones only, and
    has keys and values in these only. Nothing verifies what they write.

    The paper pools a layer's input over the prompt. Here a router reads the last token of it, so
    the choice does not depend on what of the prompt was cached. The first layer always runs.

    When: the model was made by ``paradecode train first``, is deep, and a loss may be borne.
    """

    routers: str = local_path("file of `train first`")
    threshold: float = parameter(0.5, 0.0, 1.0, "least score of a layer that runs; 0 keeps all")

    def __post_init__(self) -> None:
        self.trained = Routers.needed("first", self.routers, ROUTERS)

    def decode(self, seq: TokenSequence) -> Steps:
        self.trained.check("first", facts := seq.about(), "layers", "hidden_size")
        inner = range(facts.layers - 1)
        # What another worker began has more tokens than the prompt: they run as they did there.
        ahead = seq.prompt_length - 1 - (len(seq.tokens) - len(seq.pending))
        if ahead > 0:
            yield Forward(seq.pending[:ahead])
        reply = yield Forward(seq.pending[:1], hidden=tuple(inner))
        entered = np.array([reply.hidden[layer][-1] for layer in inner], np.float32)
        layers = self.trained.layers(entered, self.threshold)
        if not len(seq.pending):
            seq.commit(coupled(seq, EMPTY, reply))
        while not seq.finished:
            reply = yield Forward(seq.pending, layers=layers)
            seq.commit(coupled(seq, EMPTY, reply))


# Many tokens skip some layers: a LoRA corrects each skipped layer's latest output.

ADAPTERS = "paradecode train lora-drop"


@method("lora-drop", guarantee="lossy", training=ADAPTERS, paper="LoRA-Drop", arxiv="2601.02569")
@dataclass
class LoraDrop:
    """Skip some layers for most tokens; a LoRA corrects what these layers gave an earlier token.

    The prompt runs through all layers, and so does every ``window`` + 1st token behind it: a
    *refresh*. The tokens between leave the trained layers out. They have no keys and values there,
    so a refresh sees in these layers only the prompt and the refreshes before it. In the place of a
    layer's output they have that of the last refresh, plus a LoRA of what would enter the layer.
    Nothing verifies what they write.

    The first and the last layer always run.

    When: the LoRA was made by ``paradecode train lora-drop``, the model is large, and a loss may be
    borne.
    """

    adapters: str = local_path("file of `train lora-drop`")
    window: int = parameter(3, 0, 1 << 10, "tokens between two refreshes; 0 drops nothing")

    def __post_init__(self) -> None:
        self.trained = DropAdapters.needed("lora-drop", self.adapters, ADAPTERS)
        self.outputs: dict[int, Array] = {}  # Of the dropped layers at the last refresh.

    def decode(self, seq: TokenSequence) -> Steps:
        self.trained.check("lora-drop", seq.about(), "layers", "hidden_size")
        at = seq.prompt_length - 1
        refreshed = np.arange(at, dtype=np.int32)
        ahead = at - (len(seq.tokens) - len(seq.pending))
        if ahead > 0:
            yield Forward(seq.pending[:ahead])
        while not seq.finished:
            refresh = (at - seq.prompt_length + 1) % (self.window + 1) == 0
            reply = yield from self.token(seq, at, refreshed, refresh)
            if refresh:
                refreshed = np.append(refreshed, np.int32(at))
            at += 1
            if at == len(seq.tokens):  # What another worker began has tokens behind the prompt.
                seq.commit(coupled(seq, EMPTY, reply))

    def token(
        self, seq: TokenSequence, at: int, refreshed: NDArray[np.int32], refresh: bool
    ) -> Generator[Request, Any, Reply]:
        """Run the token at this position, piece by piece; the reply is that of the last layers."""
        place = np.array([at], np.int32)
        x: Any = None
        for layers, instead in self.trained.pieces:
            if instead is not None and not refresh:
                last = {str(layer): self.outputs[layer] for layer in layers}
                x = yield Apply(instead, {"x": x, **last})
                continue
            # The first piece appends the row, and the others add their layers to it.
            appends = at == len(seq.tokens) - len(seq.pending)
            ends = layers[-1] == self.trained.facts["layers"] - 1
            reply = yield Forward(
                seq.tokens[at : at + 1],
                store=Store.COMMIT if appends else Overwrite(place),
                positions=place,
                visible=refreshed if instead else np.arange(at, dtype=np.int32),
                logits=None if ends else place[:0],
                hidden=() if ends else layers,
                layers=layers,
                resume=x,
            )
            if instead is not None:
                self.outputs |= {layer: reply.hidden[layer] for layer in layers}
            x = None if ends else reply.hidden[layers[-1]]
        return reply
