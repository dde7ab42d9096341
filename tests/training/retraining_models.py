"""A random model and texts, for tests of models that are retrained for other methods."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paradecode.backends.torch.model import Transformer
from paradecode.llm import LLM
from paradecode_lab.training.adaptation.texts import BlockText
from paradecode_lab.training.batched import final_states
from paradecode_lab.training.diffusion.model import TinyModel, save_model, tiny_config
from paradecode_lab.training.diffusion.vocabulary import build_tokenizer, save_tokenizer

CPU = torch.device("cpu")
SMALL = ("--instances", 40, "--batch", 4, "--threads", 1)


def random_model(place: Path, layers: int) -> Path:
    """Write a random causal model with the tiny models' tokenizer into a folder."""
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


def causally(model: Transformer, tokens: Tensor, places: Tensor | None = None) -> Tensor:
    """Return final states [R, n, D] of a plain forward.

    A token sees itself and the tokens before it.
    """
    turn = torch.arange(tokens.shape[1])
    return final_states(model, tokens, turn if places is None else places, turn <= turn[:, None])


def answers(llm: LLM, texts: list[BlockText], decoder: str | None = None) -> float:
    """Check that the model continues at least 18 of 20 texts correctly from three tokens.

    Returns:
        The mean number of forwards per text.
    """
    prompts = [text.tokens[:3].tolist() for text in texts[:20]]
    made = llm.complete(prompts, decoder=decoder, max_tokens=12)
    right = [one.token_ids == text.tokens[3:].tolist() for one, text in zip(made, texts)]
    assert sum(right) >= 18
    return float(np.mean([one.stats.forwards for one in made]))


def counting(count: int = 64) -> list[BlockText]:
    """Return texts in which the prompt gives a number, and the answer counts on from it.

    Only the answer can be predicted.
    """
    texts = []
    for first in range(count):
        tokens = np.array([3, 10 + first % 20, 4, *(40 + first % 20 + np.arange(6)), 0], np.int32)
        texts.append(BlockText(tokens, 3, len(tokens)))
    return texts
