"""Nested exits (SortedNet, arXiv 2309.00255; SoFT of S2D, arXiv 2407.01955).

The first layers of a model learn to be models as well. After each exit, the last norm and the LM
head, which all exits share, predict the next token. A step minimises the mean of all exits' losses
(SoFT), or the loss of drawn exits (SortedNet), where deeper layers do not run.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Attend, PackedRows, Transformer
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.drafters.draft_model import usual_exits
from paradecode.models.adapter import check_base
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.batched import spread
from paradecode_lab.training.retraining.run import Objective
from paradecode_lab.training.retraining.texts import MODEL, AnswerRows, causal_states
from paradecode_lab.training.unmasking.folder import change_config


class NestedModel(Transformer):
    """A model that keeps the outputs of its layers.

    Attributes:
        behind: number of layers -> float32 [N, D], the states after that many layers.
    """

    behind: dict[int, Tensor]

    def layer(
        self, index: int, x: Tensor, rows: PackedRows, attend: Attend,
        attends: bool = True, feeds: bool = True,
    ) -> Tensor:  # fmt: skip
        self.behind[index + 1] = super().layer(index, x, rows, attend, attends, feeds)
        return self.behind[index + 1]


class NestedObjective(Objective):
    """Trains all weights of a model up to its last exit; deeper layers are left out.

    Args:
        checkpoint: a model from a folder or a GGUF file; the result is written in its precision.
        exits: number of layers before each exit, ascending; empty takes the usual ones.
        drawn: number of exits, drawn at random, that a step learns from; 0 means all.
    """

    def __init__(
        self, checkpoint: Checkpoint, exits: tuple[int, ...], drawn: int, device: torch.device
    ) -> None:
        config = checkpoint.config
        check_base(config)
        exits = exits or usual_exits(config.layers)
        if exits[-1] > config.layers:
            raise InvalidInput("--exits", exits[-1], f"the model has {config.layers} layers")
        if drawn > len(exits):
            raise InvalidInput("--drawn", drawn, f"there are {len(exits)} exits")
        super().__init__(checkpoint, device, "nested", exits=list(exits), drawn=drawn)
        self.exits, self.drawn = exits, drawn
        cut = config.altered(layers=exits[-1])
        self.model = NestedModel(cut, checkpoint.weights, torch.float32, device)
        self.trained = self.model.w

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the mean over exits of the cross-entropy of the answers."""
        model = copy(self.model)
        exits: list[int] = list(self.exits)
        if self.drawn:
            exits = random.choice(self.exits, self.drawn, replace=False).tolist()
        model.config, model.behind = model.config.altered(layers=max(exits)), {}
        causal_states(model, rows)
        found = (rows.predicted(spread(model.behind[one], rows.inside)) for one in exits)
        losses = [F.cross_entropy(model.logits(states), right) for states, right in found]
        return torch.stack(losses).mean()

    def export(self, folder: Path) -> None:
        """Write MODEL, a folder of a model that ends with the last exit."""
        super().export(folder)
        change_config(folder / MODEL, self.exits[-1])
