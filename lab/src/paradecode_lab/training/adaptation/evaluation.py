"""Measure the perplexity of held-out texts for the adapted and for the causal model.

It is an upper bound for the block diffusion model, and exact for the causal one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from paradecode_lab.measure.statistics import Interval, interval, ratio
from paradecode_lab.training.adaptation.model import Adapted
from paradecode_lab.training.adaptation.objective import (
    batch_of,
    causal_logits,
    draw,
    in_blocks,
    masked_logits,
)
from paradecode_lab.training.adaptation.texts import BlockText

QUARTERS = 4


@dataclass(frozen=True)
class Likelihood:
    """Likelihood of held-out answers. Their stop tokens count, but padding after them does not.

    Attributes:
        texts, tokens: numbers of texts and tokens.
        bound: upper bound of the block diffusion model's perplexity, averaged over the drawn masks,
            with a 95 % interval over texts.
        autoregressive: perplexity of the causal model.
        cross_entropy: nats per masked position, by the masked share of its block: up to 1/4, 1/2,
            3/4 and 1. NaN for shares that the block is too small for.
    """

    texts: int
    tokens: int
    bound: Interval
    autoregressive: Interval
    cross_entropy: tuple[float, ...]


@torch.no_grad()
def likelihood(
    model: Adapted, texts: Sequence[BlockText], block: int, draws: int, seed: int,
    tick: Callable[[int, int], None],
) -> Likelihood:  # fmt: skip
    """Estimate the bound with ``draws`` masks of each block.

    For a block of c answer positions, -log p <= E[c / k * (sum of the k masked positions'
    cross-entropies)] with k uniform in 1..c (LLaDA, arXiv 2502.09992, eq. 14; blocks as in BD3-LM).
    The bound is an average over all orders in which the block can be written one token at a time.
    The draws of a block spread their k evenly. Padding counts in the bound, but not in the number
    of tokens.
    """
    rows: list[tuple[float, float, float]] = []
    sums = np.zeros((2, QUARTERS))
    for index, text in enumerate(texts):
        batch = batch_of([text])
        sizes = in_blocks(batch.answer, block).sum(-1)
        random = np.random.default_rng((seed, index))
        spread = (random.random(sizes.shape) + np.arange(draws)[:, None]) / draws
        counts = np.ceil(spread * sizes).astype(np.int64)
        masked = np.stack([draw(batch.answer, count[None], block, random) for count in counts], 1)
        logits, right = masked_logits(model, batch, masked, block)
        nats = F.cross_entropy(logits, right, reduction="none").double().cpu().numpy()
        share = np.repeat(counts / np.maximum(sizes, 1), block, -1)[masked[0]]
        plain, wanted = causal_logits(model, batch, batch.text)
        exact = float(F.cross_entropy(plain, wanted, reduction="sum"))
        rows.append((float((nats / share).sum() / draws), exact, float(batch.text.sum())))
        quarter = np.ceil(share * QUARTERS).astype(int) - 1
        sums += [np.bincount(quarter, weights, QUARTERS) for weights in (nats, np.ones(len(nats)))]
        tick(index + 1, len(texts))
    nll, plain_nll, tokens = np.array(rows).T
    with np.errstate(invalid="ignore"):
        means = sums[0] / sums[1]
    return Likelihood(
        len(rows), int(tokens.sum()), _perplexity(nll, tokens), _perplexity(plain_nll, tokens),
        tuple(means.tolist()),
    )  # fmt: skip


def _perplexity(nats: np.ndarray, tokens: np.ndarray) -> Interval:
    found = interval(np.stack([nats, tokens], axis=1), lambda totals: np.exp(ratio(totals)))
    assert found is not None  # There is at least one text, of at least one token.
    return found
