"""Writes tiny untrained models with a tokenizer, and prompts that they can read."""

import json
from pathlib import Path

LOOP = "red blue green red blue green red blue green red blue"
PROMPTS = [
    {"id": "a-1", "group": "a", "turns": [LOOP, "blue red"], "max_tokens": 12},
    {"id": "a-2", "group": "a", "turns": ["sort: 3 1 2"], "max_tokens": 12, "answers": ["1 2 3"]},
    {"id": "b-1", "group": "b", "turns": [LOOP + " " + LOOP], "max_tokens": 12},
    {"id": "b-2", "group": "b", "turns": ["reverse: red blue"], "max_tokens": 12},
]


def write_model(place: Path, objective: str) -> Path:
    """Write a model that answers in the tasks' words and hardly ever ends; returns its folder.

    Args:
        objective: the kind of model, ``autoregressive`` or ``diffusion``.
    """
    import torch

    from paradecode_lab.training.diffusion.model import TinyModel, save_model, tiny_config
    from paradecode_lab.training.diffusion.vocabulary import END, build_tokenizer, save_tokenizer

    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = TinyModel(tiny_config(objective, tokenizer.get_vocab_size(), 32, 2, 2, 48), seed=0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3, generator=generator)
        model.embed.weight[END] = 0  # The output head shares this tensor.
    save_model(model, place)
    save_tokenizer(tokenizer, place)
    return place


def write_prompts(file: Path) -> Path:
    file.write_text("\n".join(map(json.dumps, PROMPTS)), "utf-8")
    return file
