"""Nested exits (SortedNet, arXiv 2309.00255; SoFT of S2D, arXiv 2407.01955).

The first layers of a model learn to be models as well: behind each exit, the last norm and the LM
head, which all exits share, guess the next token. A step minimises the mean of all exits' losses
(SoFT), or the loss of one exit that is drawn (SortedNet), where deeper layers do not run.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Attend, Transformer
from paradecode.core.errors import InvalidInput
from paradecode.models.adapter import check_base
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.measure.machine import digest
from paradecode_lab.training.batched import final_states, spread
from paradecode_lab.training.retraining.texts import MODEL, AnswerRows
from paradecode_lab.training.unmasking.folder import change_config, save_folder, source_of


class NestedModel(Transformer):
    """A model that keeps the outputs of its layers.

    Attributes:
        behind: number of layers -> float32 [N, D], the states behind so many layers.
    """

    behind: dict[int, Tensor]

    def layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        self.behind[index + 1] = super().layer(index, x, cos, sin, attend)
        return self.behind[index + 1]


class NestedObjective:
    """Trains all weights of a model up to its last exit; deeper layers are left out.

    Args:
        checkpoint: a model from a folder or a GGUF file; the result is written in its precision.
        exits: number of layers before each exit, ascending.
        drawn: number of exits that a step learns from; 0 means all.
    """

    def __init__(
        self, checkpoint: Checkpoint, exits: tuple[int, ...], drawn: int, device: torch.device
    ) -> None:
        source, config = source_of(checkpoint), checkpoint.config
        check_base(config)
        if exits[-1] > config.layers:
            raise InvalidInput("--exits", exits[-1], f"the model has {config.layers} layers")
        if drawn > len(exits):
            raise InvalidInput("--drawn", drawn, f"there are {len(exits)} exits")
        self.checkpoint, self.device = checkpoint, device
        self.exits, self.drawn = exits, drawn
        cut = replace(config, layers=exits[-1])
        self.model = NestedModel(cut, checkpoint.weights, torch.float32, device)
        self.trained = self.model.w
        self.facts = {
            "objective": "nested", "weights": digest(source), "exits": list(exits), "drawn": drawn,
        }  # fmt: skip

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """The mean over exits of the cross-entropy of the answers."""
        tokens, answers, model = rows.tokens, rows.answers, copy(self.model)
        exits: list[int] = list(self.exits)
        if self.drawn:
            exits = random.choice(self.exits, self.drawn, replace=False).tolist()
        model.config, model.behind = replace(model.config, layers=max(exits)), {}
        places, inside = torch.arange(tokens.shape[1], device=self.device), rows.inside
        final_states(model, tokens, places, places <= places[:, None], inside)
        row, at = answers.nonzero(as_tuple=True)
        states = (spread(model.behind[one], inside)[row, at - 1] for one in exits)
        right = tokens[row, at]
        return torch.stack([F.cross_entropy(model.logits(one), right) for one in states]).mean()

    def export(self, folder: Path) -> None:
        """Write MODEL, a folder of a model that ends with the last exit."""
        save_folder(self.checkpoint, self.trained, folder / MODEL)
        change_config(folder / MODEL, self.exits[-1])
