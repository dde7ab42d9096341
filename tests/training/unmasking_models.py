"""Tiny diffusion models that open quickly, and texts for training."""

from pathlib import Path

import numpy as np
import torch

from paradecode.llm import LLM
from paradecode.models.tiny import tiny_checkpoint
from paradecode_lab.training.batched import BatchedModel
from paradecode_lab.training.diffusion.model import TinyModel, save_model, tiny_config
from paradecode_lab.training.diffusion.vocabulary import build_tokenizer, save_tokenizer
from paradecode_lab.training.unmasking.fine_tune import FineTuning
from paradecode_lab.training.unmasking.trajectories import PROMPT, Trajectories


def model_folder(folder: Path, seed: int = 0) -> Path:
    """Write a random model with the tiny models' tokenizer into a folder.

    It has 2 layers of width 32.
    """
    folder.mkdir()
    tokenizer = build_tokenizer()
    model = TinyModel(tiny_config("diffusion", tokenizer.get_vocab_size(), 32, 2, 2, 48), seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 1.5 * parameter.shape[1] ** -0.5, generator=generator)
        model.embed.weight.normal_(0, 1, generator=generator)
    save_model(model, folder)
    save_tokenizer(tokenizer, folder)
    return folder


def front(folder: Path) -> LLM:
    return LLM(folder, backend="native", threads=1)


def texts(count: int = 40, seed: int = 0) -> Trajectories:
    """Return canvases with a prompt of 3 tokens and an answer of 8, decoded from left to right.

    The answer repeats the prompt's first token.
    """
    random = np.random.default_rng(seed)
    first = random.integers(4, 24, count)
    tokens = np.repeat(first[:, None], 11, axis=1).astype(np.float32)
    step = np.tile(np.array([PROMPT] * 3 + [*range(8)], np.float32), (count, 1))
    return Trajectories(tokens, step)


def quiet(done: int, total: int) -> None:
    assert 0 < done <= total


def whole(training: FineTuning) -> None:
    """Run a training to its end."""
    while training.step < training.steps:
        training.advance()


def batched(kind: str) -> BatchedModel:
    return BatchedModel(*tiny_checkpoint(kind), torch.device("cpu"))
