"""Training of all weights of a causal model that gets a mask token."""

from __future__ import annotations

from pathlib import Path

import torch

from paradecode.backends.torch.model import Transformer
from paradecode.models.adapter import check_base, unused_token
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.measure.machine import digest
from paradecode_lab.training.retraining.texts import MODEL
from paradecode_lab.training.unmasking.folder import change_config, save_folder, source_of


class MaskedObjective:
    """The common part of objectives for such models.

    Args:
        checkpoint: a model from a folder or a GGUF file; the result is written in its precision.
            Its configuration may have fewer layers than the file; deeper ones are left out.
        name: name of the objective.
        settings: settings that the result depends on.

    Attributes:
        mask: id of the mask token.

    Raises:
        InvalidInput, InvalidModel: if the model cannot be written, is not dense and causal, or has
            no token to spare.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, name: str, **settings: object
    ) -> None:
        source = source_of(checkpoint)
        check_base(checkpoint.config)
        self.checkpoint, self.device = checkpoint, device
        self.mask = unused_token(checkpoint)
        self.model = Transformer(checkpoint.config, checkpoint.weights, torch.float32, device)
        self.trained = self.model.w
        self.facts = {"objective": name, "weights": digest(source), "mask": self.mask, **settings}

    def export(self, folder: Path) -> None:
        """Write MODEL, a folder whose configuration names the mask token."""
        save_folder(self.checkpoint, self.trained, folder / MODEL)
        layers = self.checkpoint.config.layers
        change_config(folder / MODEL, layers, attention="causal", mask_token_id=self.mask)
