"""Many tokens skip some layers: a LoRA corrects each skipped layer's latest output."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

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
from paradecode.core.network import Array
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.methods.parts import local_path, method, parameter
from paradecode.methods.retrained.dropped_layers import DropAdapters

COMMAND = "paradecode train lora-drop"


@method("lora-drop", guarantee="lossy", training=COMMAND, paper="LoRA-Drop", arxiv="2601.02569")
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
        self.trained = DropAdapters.needed("lora-drop", self.adapters, COMMAND)
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
