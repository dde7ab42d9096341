"""Plain decoding of many prompts of one length, for evaluation during training."""

from __future__ import annotations

import torch
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode_lab.training.diffusion.model import TinyModel
from paradecode_lab.training.diffusion.vocabulary import END, MASK

ORDERS = ("confidence", "left")


@torch.inference_mode()
def fill(
    model: TinyModel, prompts: Tensor, length: int, block: int = 0, order: str = "confidence"
) -> Tensor:
    """Decode with LLaDA's static schedule, one token a forward, at temperature 0.

    Args:
        model: a diffusion model.
        prompts: int64 [B, P].
        length: number of masks after the prompt.
        block: blocks of this length are filled one after another; 0 is one block.
        order: ``confidence`` takes the most probable token of the block, the leftmost of equal
            ones; ``left`` takes the leftmost mask.

    Returns:
        int64 [B, length].
    """
    if order not in ORDERS:
        raise InvalidInput("order", order, f"use one of {', '.join(ORDERS)}")
    count, start = prompts.shape
    canvas = torch.cat([prompts, prompts.new_full((count, length), MASK)], 1)
    masked = torch.ones(count, length, dtype=torch.bool, device=prompts.device)
    rows = torch.arange(count, device=prompts.device)
    for first in range(0, length, block or length):
        last = min(first + (block or length), length)
        for _ in range(last - first):
            at = start + first - model.config.shift
            logits = model.logits(model(canvas)[:, at : at + last - first])
            logits[..., MASK] = -torch.inf
            confidence, tokens = logits.softmax(-1).max(-1)
            score = confidence if order == "confidence" else torch.ones_like(confidence)
            score = score.where(masked[:, first:last], -1)
            place = (score == score.max(1, keepdim=True).values).int().argmax(1)
            canvas[rows, start + first + place] = tokens[rows, place]
            masked[rows, first + place] = False
    return canvas[:, start:]


@torch.inference_mode()
def continue_text(model: TinyModel, prompts: Tensor, length: int) -> Tensor:
    """Greedy decoding of an autoregressive model: prompts int64 [B, P] -> [B, up to length].

    It stops when every row has an END; tokens after a row's END have no meaning.
    """
    tokens, start = prompts, prompts.shape[1]
    for _ in range(length):
        best = model.logits(model(tokens)[:, -1]).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, best], 1)
        if (tokens[:, start:] == END).any(1).all():
            break
    return tokens[:, start:]
