"""Routers that read the prompt once and choose the layers that decode this sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Forward, Steps, TokenSequence
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.methods.parts import local_path, method, parameter
from paradecode.methods.trained import TrainedPart

COMMAND = "paradecode train first"


class Routers(TrainedPart):
    """A small router for each layer but the first: it says whether a text with this prompt needs
    the layer.

    Its input is what enters the layer at the prompt's last token, divided by the rms; it is linear.
    """

    kind = "layer routers 1"
    field = "routers"
    sizes: ClassVar = {"layers": 1 << 10, "hidden_size": 1 << 16}

    @staticmethod
    def wrong(facts: Mapping[str, Any]) -> str | None:
        return "it is for one layer" if facts["layers"] < 2 else None

    @staticmethod
    def shapes(facts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        routed = facts["layers"] - 1
        return {"weight": (routed, facts["hidden_size"]), "bias": (routed,)}

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


@method("first", guarantee="lossy", training=COMMAND, paper="FiRST", arxiv="2410.12513")
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
        self.trained = Routers.needed("first", self.routers, COMMAND)

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
