"""FiRST (arXiv 2410.12513): routers learn which layers a text needs; a LoRA replaces the others.

In the first half of the steps the model is frozen. Layer l adds g_l * F_l(x) to the states of
tokens after the prompt, with g_l between 0 and 1 from its router, and every layer has a price. In
the second half the routers are frozen. A layer then runs or does not run, and a LoRA on all
matrices learns to replace the layers that do not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Attend, PackedRows
from paradecode.core.errors import InvalidInput
from paradecode.methods.retrained.layers import Routers
from paradecode.models.adapter import MASK, Facts, check_base
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.adaptation.model import Adapted, new_adapter
from paradecode_lab.training.retraining.run import Objective
from paradecode_lab.training.retraining.texts import MODEL, AnswerRows, causal_states
from paradecode_lab.training.unmasking.folder import save_folder

ROUTERS = "routers.safetensors"
THRESHOLD = 0.5


class Gated(Adapted):
    """A model whose layers are gated for the tokens after the prompt.

    Attributes:
        weight, bias: [layers - 1, D] and [layers - 1], weights of the routers.
        hard: whether gates are 0 or 1.
        last: int64 [B], rows of the prompts' last tokens.
        behind: int64 [N], for a row of an answer the index of its text; -1 for rows of prompts.
        scores: float32 [B] for each layer that ran: the gates of the texts.
    """

    weight: Tensor
    bias: Tensor
    hard: bool
    last: Tensor
    behind: Tensor
    scores: list[Tensor]

    def layer(
        self, index: int, x: Tensor, rows: PackedRows, attend: Attend,
        attends: bool = True, feeds: bool = True,
    ) -> Tensor:  # fmt: skip
        y = super().layer(index, x, rows, attend, attends, feeds)
        if index == 0:
            return y
        entered = x[self.last]
        rms = (entered.square().mean(-1) + 1e-6).sqrt()
        score = ((entered @ self.weight[index - 1]) / rms + self.bias[index - 1]).sigmoid()
        self.scores.append(score)
        gate = (score >= THRESHOLD).to(x.dtype) if self.hard else score
        gates = torch.where(self.behind < 0, 1.0, gate[self.behind])[:, None]
        return x + gates * (y - x)


class FirstObjective(Objective):
    """Trains routers, and then a LoRA.

    Args:
        checkpoint: a model from a folder or a GGUF file; the result is written in its precision.
        rank: rank of the LoRA.
        price: price of a layer that runs, in nats of loss per token.
    """

    def __init__(
        self, checkpoint: Checkpoint, rank: int, price: float, seed: int, device: torch.device
    ) -> None:
        super().__init__(checkpoint, device, "first", rank=rank, price=price)
        config, weights = checkpoint.config, checkpoint.weights
        check_base(config)
        if config.layers < 2:
            raise InvalidInput("--model", config.name, "it has one layer: name a deeper model")
        self.price = price
        lora = Facts(config.name, rank, 1, 0, False)
        adapter = new_adapter(config, weights, lora, seed, device)
        del adapter[MASK]
        self.model = Gated(config, weights, lora, adapter, torch.float32, device)
        self.model.weight = torch.zeros(config.layers - 1, config.hidden_size, device=device)
        self.model.bias = torch.ones(config.layers - 1, device=device)
        self.trained = {**adapter, "weight": self.model.weight, "bias": self.model.bias}

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the answers' cross-entropy; in the first half also the price of the layers."""
        self.model.hard = done >= 0.5
        model = self.model if self.model.hard else cast(Gated, self.model.using({}))
        logits, right = answers_of(model, rows)
        loss = F.cross_entropy(logits, right)
        if model.hard:
            return loss
        # The price is concave in a gate, so that gates do not stay between 0 and 1.
        gates = torch.stack(model.scores)
        return loss + self.price * (gates * (2 - gates)).sum(0).mean()

    def export(self, folder: Path) -> None:
        """Write MODEL, a folder with the LoRA merged, and the file ROUTERS."""
        model, merged = self.model, {}
        for name, weight in model.w.items():
            a, b = (model.adapter.get(f"{name}.{part}") for part in "ab")
            merged[name] = weight if a is None or b is None else weight + (b @ a).detach()
        save_folder(self.checkpoint, merged, folder / MODEL)
        config = self.checkpoint.config
        facts = {"layers": config.layers, "hidden_size": config.hidden_size}
        tensors = {n: getattr(model, n).detach().cpu().numpy() for n in ("weight", "bias")}
        Routers(facts, tensors).save(folder / ROUTERS)


def answers_of(model: Gated, rows: AnswerRows) -> tuple[Tensor, Tensor]:
    """Return logits [K, V] that predict the answers' tokens, and these tokens [K]."""
    answers, inside = rows.answers, rows.inside
    number = torch.arange(len(inside), device=inside.device)
    counts = inside.sum(1)
    model.last = counts.cumsum(0) - counts + rows.start - 1
    model.behind = torch.where(answers, number[:, None], -1)[inside]
    model.scores = []
    states, right = rows.predicted(causal_states(model, rows))
    return model.logits(states), right
