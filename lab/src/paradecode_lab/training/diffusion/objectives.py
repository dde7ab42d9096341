"""Compute the losses: masked tokens from all other tokens (diffusion), or the next token."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.diffusion.data import Pack
from paradecode_lab.training.diffusion.model import CONTEXT, TinyModel
from paradecode_lab.training.diffusion.vocabulary import END, MASK

BLOCKS = (1 << 16, 1, 4, 8, 16)
"""Lengths of the blocks in which masks are random; the first length is longer than any answer."""
BLOCK_SHARES = (0.6, 0.1, 0.1, 0.1, 0.1)
TAIL_WEIGHT = 0.1
ATTENTION_BLOCKS = (4, 8, 16)
"""Lengths of attention blocks, counted from position 0, for models that learn block attention."""


def mask(
    pack: Pack, levels: NDArray[np.float64], random: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Draw which positions are masked, and weigh the loss at each.

    LLaDA (Nie et al. 2025, arXiv:2502.09992) masks each token with probability t and weighs it with
    1/t. This is the lower-variance form (their equation 14). An answer has c tokens, the first END
    included; exactly k of them are masked, with k uniform in 1..c, and each has weight 1/k.

    Some rows have the masks of block-wise decoding: none in earlier blocks, random ones in one
    block, all in later blocks. The ENDs after the first one are masked at the same rate, or not at
    all, or all of them; together they have the weight TAIL_WEIGHT.

    Args:
        levels: float64 [B] in [0, 1); k is 1 + floor(level * c).

    Returns:
        The masked positions, bool [B, T], and their weights, float32 [B, T].
    """
    count, length = pack.tokens.shape
    masked, weight = np.zeros((count, length), bool), np.zeros((count, length), np.float32)
    blocks = np.array(BLOCKS)[random.choice(len(BLOCKS), count, p=BLOCK_SHARES)]
    keys = random.random((count, length))
    tails = random.integers(0, 4, (count,))
    for row, (start, end) in enumerate(zip(pack.start, pack.end)):
        content = end - start
        k = 1 + int(levels[row] * content)
        order = np.argsort(keys[row, start:end] + np.arange(content) // blocks[row])
        chosen = start + order[content - k :]
        masked[row, chosen], weight[row, chosen] = True, 1 / k
        ratio = (k / content, k / content, 0, 1)[tails[row]]
        tail = end + np.flatnonzero(keys[row, end:] < ratio)
        if len(tail):
            masked[row, tail], weight[row, tail] = True, TAIL_WEIGHT / len(tail)
    return masked, weight


def diffusion_loss(
    model: TinyModel, pack: Pack, levels: NDArray[np.float64], random: np.random.Generator
) -> Tensor:
    """Return the sum over rows of the weighted cross-entropy at masked positions."""
    device = model.embed.weight.device
    masked, weight = mask(pack, levels, random)
    inputs = torch.from_numpy(np.where(masked, MASK, pack.tokens)).to(device)
    # In a shifted model, the row to the left predicts a position. It exists, because no prompt is
    # empty.
    where = torch.from_numpy(np.roll(masked, -1, 1) if model.config.shift else masked).to(device)
    logits = model.logits(model(inputs)[where])
    targets = torch.from_numpy(pack.tokens[masked]).to(device)
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses @ torch.from_numpy(weight[masked]).to(device)


def block_loss(model: TinyModel, pack: Pack, random: np.random.Generator) -> Tensor:
    """Return a loss like ``diffusion_loss``, but for attention in blocks.

    Attention is full inside a block and causal between blocks (BD3-LM, Arriola et al. 2025,
    arXiv:2503.09573). Each row stands in the batch twice, clean and masked. A masked block sees
    itself and the clean blocks before it, so all blocks of an answer are trained on at once.

    The ENDs up to the end of the last block count as part of the answer. A block with c answer
    tokens gets k masks, with k uniform in 1..c. Each has the weight c/k, divided by the number of
    answer tokens.
    """
    device = model.embed.weight.device
    size = int(random.choice(ATTENTION_BLOCKS))
    whole = -(-pack.end // size) * size
    length = min(CONTEXT, int(whole.max()))
    tokens = np.full((len(pack.tokens), length), END, np.int64)
    kept = min(length, pack.tokens.shape[1])
    tokens[:, :kept] = pack.tokens[:, :kept]
    first = int(pack.start.min()) // size * size
    at = np.arange(first, length)
    answer = (at >= pack.start[:, None]) & (at < whole[:, None])
    masked, weight = np.zeros(answer.shape, bool), np.zeros(answer.shape, np.float32)
    keys = random.random(answer.shape)
    for begin in range(0, length - first, size):
        block = slice(begin, begin + size)
        count = answer[:, block].sum(1, keepdims=True)
        k = np.floor(random.random(count.shape) * count) + 1
        ranks = np.where(answer[:, block], keys[:, block], 2).argsort(1).argsort(1)
        masked[:, block] = answer[:, block] & (ranks < k)
        weight[:, block] = count / k / answer.sum(1, keepdims=True)
    noisy = np.where(masked, MASK, tokens[:, first:])
    positions = np.concatenate([np.arange(length), at])
    block_of, is_noisy = positions // size, np.arange(len(positions)) >= length
    same = block_of[:, None] == block_of
    earlier = block_of[:, None] > block_of
    seen = np.where(is_noisy, same & is_noisy[:, None], earlier | (same & ~is_noisy[:, None]))
    hidden = model(
        torch.from_numpy(np.concatenate([tokens, noisy], 1)).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(seen).to(device),
    )
    row, column = np.nonzero(masked)
    asked = length + column
    if model.config.shift:  # The clean row before a block predicts its first token.
        asked = np.where(column % size == 0, first + column, asked) - 1
    logits = model.logits(hidden[torch.from_numpy(row).to(device), torch.from_numpy(asked)])
    targets = torch.from_numpy(tokens[:, first:][masked]).to(device)
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses @ torch.from_numpy(weight[masked]).to(device)


def next_token_loss(model: TinyModel, pack: Pack) -> Tensor:
    """Return the sum over rows of the answer tokens' mean cross-entropy, the first END included."""
    device = model.embed.weight.device
    at = np.arange(1, pack.tokens.shape[1])
    start, end = pack.start[:, None], pack.end[:, None]
    inside = (at >= start) & (at < end)
    weight = (inside / (end - start)).astype(np.float32)
    hidden = model(torch.from_numpy(pack.tokens[:, :-1]).to(device))
    logits = model.logits(hidden[torch.from_numpy(inside).to(device)])
    targets = torch.from_numpy(pack.tokens[:, 1:][inside]).to(device)
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses @ torch.from_numpy(weight[inside]).to(device)
