"""SpecDec++'s head: residual blocks that read the draft's hidden state; inference in NumPy."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets.states import unit
from paradecode.methods.read_once import read_once
from paradecode.methods.tensor_file import checked, load_tensors, save_tensors, size_in

KIND = "acceptance head 1"
FIELD = "acceptance_head"
MOST_WIDTH, MOST_BLOCKS = 1 << 13, 16
STATES, ESTIMATES = "states", "estimates"

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ResidualHead:
    """P(a draft token is accepted | those before it were), from its row of the draft forward.

    ``blocks`` times x + SiLU(W x + b), then a linear layer (Huang et al. 2024, arXiv 2405.19715).
    As in the released code, all blocks share W and b. The paper's softmax over two outputs is the
    sigmoid of their difference, so there is one output.

    Attributes:
        reads: ``states``: hidden states of a draft model, or of a part of the target, which are
            brought to unit scale first; ``estimates``: what is known of a token that no model
            drafted (see ``acceptance_head.features``).
        blocks: how often the block is applied; 0 leaves a linear classifier.
        mean, scale: float32 [H]: inputs become (x - mean) * scale; 0 ignores one.
        weight, bias: float32 [H, H] (used as x @ weight) and [H]: the block.
        out: float32 [H + 1]: the last layer, its bias behind.
    """

    reads: str
    blocks: int
    mean: Array
    scale: Array
    weight: Array
    bias: Array
    out: Array

    @property
    def width(self) -> int:
        return len(self.mean)

    def predict(self, inputs: NDArray[np.floating]) -> NDArray[np.float64]:
        """float64 [N] probabilities for inputs [N, H].

        Raises:
            InvalidInput: if the head was trained for states of another size.
        """
        if inputs.shape[1] != self.width:
            raise InvalidInput(
                FIELD, f"a head for {self.width} inputs",
                f"this draft gives {inputs.shape[1]}: train one with it",
            )  # fmt: skip
        x = inputs.astype(np.float32)
        x = ((unit(x) if self.reads == STATES else x) - self.mean) * self.scale
        for _ in range(self.blocks):
            y = x @ self.weight + self.bias
            x = x + y / (1.0 + np.exp(-np.clip(y, -40.0, 40.0)))
        logit = x.astype(np.float64) @ self.out[:-1] + self.out[-1]
        return 1.0 / (1.0 + np.exp(-np.clip(logit, -40.0, 40.0)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that :func:`open_head` reads."""
        save_tensors(
            path, KIND, {"reads": self.reads, "width": self.width, "blocks": self.blocks},
            {"mean": self.mean, "scale": self.scale, "weight": self.weight, "bias": self.bias,
             "out": self.out},
        )  # fmt: skip


@read_once(FIELD)
def open_head(path: str) -> ResidualHead:
    """The head of a file, read and checked once for all requests.

    Raises:
        InvalidInput: for a file that is missing, damaged or not an acceptance head.
    """
    facts, tensors = load_tensors(path, KIND, FIELD)
    width = size_in(FIELD, path, facts, "width", MOST_WIDTH)
    blocks = facts.get("blocks")
    if blocks != 0:
        blocks = size_in(FIELD, path, facts, "blocks", MOST_BLOCKS)
    reads = facts.get("reads")
    if reads not in (STATES, ESTIMATES):
        raise InvalidInput(FIELD, path, f"it reads {reads!r:.40}: train it again")
    vector = (width,)
    checked(
        FIELD, path, tensors,
        {"mean": vector, "scale": vector, "weight": (width, width), "bias": vector,
         "out": (width + 1,)},
    )  # fmt: skip
    return ResidualHead(reads=reads, blocks=int(blocks), **tensors)
