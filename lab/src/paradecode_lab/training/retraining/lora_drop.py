"""LoRA-Drop (arXiv 2601.02569): a LoRA learns to correct a layer's output for an earlier token.

The model is frozen. After the prompt, one token in ``window`` + 1 runs the dropped layers, as in
decoding; this is a refresh. The other tokens take these layers' outputs from the last refresh, plus
the LoRA's output, and have no keys and values in these layers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Attend, PackedRows, Transformer
from paradecode.core.errors import InvalidInput
from paradecode.methods.retrained.layers import DropAdapters
from paradecode.models.adapter import check_base
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights
from paradecode_lab.training.batched import attention_in, final_states
from paradecode_lab.training.retraining.run import Objective
from paradecode_lab.training.retraining.texts import AnswerRows

ADAPTERS = "adapters.safetensors"


def inner_layers(config: ModelConfig, share: float) -> list[int]:
    """Return the layers to drop: ``share`` of all, side by side before the last one.

    Neighbouring layers are one piece of a forward. As in the paper, the first three layers and the
    last one always run, if the model has so many.

    Raises:
        InvalidInput: the model has fewer than three layers.
    """
    if config.layers < 3:
        raise InvalidInput("--model", config.name, "it has no inner layer: name a deeper model")
    first = min(3, config.layers - 2)
    count = min(max(round(share * config.layers), 1), config.layers - 1 - first)
    return list(range(config.layers - 1 - count, config.layers - 1))


class Dropping(Transformer):
    """A frozen model in which tokens after the prompt skip layers.

    Attributes:
        loras: ``<layer>.a`` [D, rank] and ``<layer>.b`` [rank, D] of the dropped layers.
        latest: int64 [N], for each row the row of the last refresh; for a refresh, the row itself.
        holes: the attention of dropped layers, in which only refreshes are seen.
    """

    loras: dict[str, Tensor]
    latest: Tensor
    holes: Attend

    def __init__(
        self, config: ModelConfig, weights: Weights, loras: dict[str, Tensor], device: torch.device
    ) -> None:
        super().__init__(config, weights, torch.float32, device)
        self.loras = loras

    def layer(
        self, index: int, x: Tensor, rows: PackedRows, attend: Attend,
        attends: bool = True, feeds: bool = True,
    ) -> Tensor:  # fmt: skip
        a = self.loras.get(f"{index}.a")
        if a is None:
            return super().layer(index, x, rows, attend, attends, feeds)
        y = super().layer(index, x, rows, self.holes, attends, feeds)
        drops = self.latest != torch.arange(len(x), device=x.device)
        stood_in = y[self.latest] + x @ a @ self.loras[f"{index}.b"]
        return torch.where(drops[:, None], stood_in, y)


class LoraDropObjective(Objective):
    """Trains a LoRA for each dropped layer.

    Args:
        checkpoint: a model from a folder or a GGUF file, which stays unchanged.
        rank: rank of each LoRA.
        share: share of the layers that are dropped.
        window: number of tokens between two refreshes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        rank: int,
        share: float,
        window: int,
        seed: int,
        device: torch.device,
    ) -> None:
        config = checkpoint.config
        check_base(config)
        self.window, width = window, config.hidden_size
        self.sizes = {
            "layers": config.layers, "hidden_size": width, "rank": rank,
            "dropped": inner_layers(config, share),
        }  # fmt: skip
        super().__init__(checkpoint, device, "lora-drop", window=window, **self.sizes)
        random, made = np.random.default_rng(seed), dict[str, np.ndarray]()
        for name, shape in DropAdapters(self.sizes, {}).shapes().items():
            made[name] = np.zeros(shape)
            if name.endswith(".a"):
                made[name] = random.standard_normal(shape) / np.sqrt(width)
        self.trained = {n: torch.from_numpy(t).float().to(device) for n, t in made.items()}
        self.model = Dropping(config, checkpoint.weights, self.trained, device)

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the cross-entropy of the answers."""
        logits, right = self.answers(rows)
        return F.cross_entropy(logits, right)

    def answers(self, rows: AnswerRows) -> tuple[Tensor, Tensor]:
        """Return logits [K, V] that predict the answers' tokens, and these tokens [K]."""
        tokens, inside = rows.tokens, rows.inside
        places = torch.arange(tokens.shape[1], device=self.device)
        behind = (places - (rows.start[:, None] - 1)).clamp(min=0)
        since = behind % (self.window + 1)
        ago = since[inside]
        self.model.latest = torch.arange(len(ago), device=self.device) - ago
        causal = places <= places[:, None]
        # Rows that are no refresh run here too, although their results are not used. They must see
        # something.
        seen = causal & (since == 0)[:, None] | torch.eye(len(places), device=self.device).bool()
        self.model.holes = attention_in(inside, seen[:, None])
        states = final_states(self.model, tokens, places, causal, inside)
        before, right = rows.predicted(states)
        return self.model.logits(before), right

    def export(self, folder: Path) -> None:
        """Write the LoRAs into the file ADAPTERS; the unchanged model is not written."""
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in self.trained.items()}
        DropAdapters(self.sizes, tensors).save(folder / ADAPTERS)
