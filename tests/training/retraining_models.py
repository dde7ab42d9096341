"""A random model, and texts, for tests of models that decode in another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from paradecode.training.adaptation.texts import BlockText
from paradecode.training.diffusion.model import TinyModel, save_model, tiny_config
from paradecode.training.diffusion.vocabulary import build_tokenizer, save_tokenizer

CPU = torch.device("cpu")
SMALL = ("--instances", 40, "--batch", 4, "--threads", 1)


def random_model(place: Path, layers: int) -> Path:
    """A random causal model with the tiny models' tokenizer."""
    place.mkdir()
    tokenizer = build_tokenizer()
    config = tiny_config("autoregressive", tokenizer.get_vocab_size(), 32, layers, 2, 48)
    model = TinyModel(config, 0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 1.5 * parameter.shape[1] ** -0.5, generator=generator)
    save_model(model, place)
    save_tokenizer(tokenizer, place)
    return place


def counting(count: int = 64) -> list[BlockText]:
    """A prompt says where to begin; the answer counts from there, so only it is uncertain."""
    texts = []
    for first in range(count):
        tokens = np.array([3, 10 + first % 20, 4, *(40 + first % 20 + np.arange(6)), 0], np.int32)
        texts.append(BlockText(tokens, 3, len(tokens)))
    return texts
