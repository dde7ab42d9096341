"""Choose the answer positions that are masked, and compute the model's loss at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.adaptation.model import Adapted, about, copies_seen
from paradecode_lab.training.adaptation.texts import BlockText
from paradecode_lab.training.batched import banned, final_states

LEAST_LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class TextBatch:
    """A batch of texts, padded at the end.

    Attributes:
        tokens: int64 [B, L]; padding follows all blocks of a text, so no block sees it.
        answer: bool [B, L], the answers with the stop tokens that pad their last blocks.
        text: bool [B, L], the answers without these added stop tokens.
    """

    tokens: NDArray[np.int64]
    answer: NDArray[np.bool_]
    text: NDArray[np.bool_]


def batch_of(texts: Sequence[BlockText]) -> TextBatch:
    """Put texts into one padded batch."""
    width = max(len(text.tokens) for text in texts)
    tokens = np.zeros((len(texts), width), np.int64)
    at = np.arange(width)
    answer, inside = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = text.tokens
        answer[row] = (at >= text.start) & (at < len(text.tokens))
        inside[row] = (at >= text.start) & (at < text.end)
    return TextBatch(tokens, answer, inside)


def in_blocks(values: NDArray[np.bool_], block: int) -> NDArray[np.bool_]:
    """Reshape [..., L] to [..., L / block, block]."""
    return values.reshape(*values.shape[:-1], -1, block)


def draw(
    chosen: NDArray[np.bool_], counts: NDArray[np.integer], block: int, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw positions at random: in each block ``counts`` [B, L / block] of those in ``chosen``.

    Args:
        chosen: bool [B, L].

    Returns:
        bool [B, L], the drawn positions.
    """
    keys = np.where(in_blocks(chosen, block), random.random(chosen.shape).reshape(
        len(chosen), -1, block), np.inf)  # fmt: skip
    rank = keys.argsort(-1).argsort(-1)
    return (rank < counts[..., None]).reshape(chosen.shape) & chosen


def complementary(
    batch: TextBatch, block: int, levels: NDArray[np.float64], random: np.random.Generator
) -> NDArray[np.bool_]:
    """Return bool [B, 2, L]: two copies in which every answer position is masked exactly once.

    Args:
        levels: [B, L / block] from 0 to 1, the share of each block that the first copy masks.
    """
    sizes = in_blocks(batch.answer, block).sum(-1)
    share = LEAST_LEVEL + (1 - LEAST_LEVEL) * levels
    one = draw(batch.answer, np.ceil(share * sizes).astype(np.int64), block, random)
    return np.stack([one, batch.answer & ~one], 1)


def masked_logits(
    model: Adapted, batch: TextBatch, masked: NDArray[np.bool_], block: int
) -> tuple[Tensor, Tensor]:
    """Return logits [K, V] for the masked positions, the mask token banned, and right tokens [K].

    Args:
        masked: bool [B, copies, L]; the order of K is that of ``masked.nonzero()``.
    """
    copies, length = masked.shape[1:]
    clean = torch.from_numpy(batch.tokens).to(model.device)
    where = torch.from_numpy(masked).to(model.device)
    hidden = torch.where(where, model.facts.mask_token, clean[:, None])
    tokens = torch.cat([hidden.flatten(1), clean], 1)
    places = torch.arange(length, device=model.device).repeat(copies + 1)
    seen = copies_seen(block, length, copies).to(model.device)
    row, copy_of, position = where.nonzero(as_tuple=True)
    column = about(position, copy_of, block, length, copies, model.facts.shift)
    logits = model.logits(final_states(model, tokens, places, seen)[row, column])
    return banned(logits, model.facts.mask_token), clean[row, position]


def causal_logits(
    model: Adapted, batch: TextBatch, wanted: NDArray[np.bool_]
) -> tuple[Tensor, Tensor]:
    """Return the causal model's logits [K, V] for positions, and the tokens [K] there.

    Args:
        wanted: bool [B, L], the positions.
    """
    tokens = torch.from_numpy(batch.tokens).to(model.device)
    places = torch.arange(tokens.shape[1], device=model.device)
    row, position = torch.from_numpy(wanted).to(model.device).nonzero(as_tuple=True)
    states = final_states(model.using({}), tokens, places, places[None] <= places[:, None])
    logits = model.logits(states[row, position - 1])
    return banned(logits, model.facts.mask_token), tokens[row, position]


def loss_sum(
    model: Adapted, batch: TextBatch, masked: NDArray[np.bool_], block: int, distil: float
) -> Tensor:
    """Return the sum of the masked positions' cross-entropies, plus ``distil`` times a divergence.

    It is the divergence from the causal model, at masked positions with no visible token to their
    right in their block: the causal model cannot see such a token. There its distribution is the
    right one, averaged over texts that were sampled from it. (For greedy texts the text itself is
    the right answer, and the divergence only smooths.)
    """
    logits, right = masked_logits(model, batch, masked, block)
    loss = F.cross_entropy(logits, right, reduction="sum")
    if distil == 0:
        return loss
    visible = in_blocks(~masked, block)
    right_of = visible[..., ::-1].cumsum(-1)[..., ::-1].reshape(masked.shape)
    taught = masked & (right_of == 0) & batch.text[:, None]
    wanted = taught.any(1)
    with torch.no_grad():
        teacher = causal_logits(model, batch, wanted)[0].log_softmax(-1)
    number = np.where(wanted.ravel(), wanted.ravel().cumsum() - 1, 0).reshape(wanted.shape)
    rows = np.broadcast_to(number[:, None], masked.shape)[taught]
    mine = logits[torch.from_numpy(taught[masked]).to(model.device)].log_softmax(-1)
    theirs = teacher[torch.from_numpy(rows.copy()).to(model.device)]
    finite = theirs.isfinite()  # The mask token is banned in both.
    divergence = (theirs.exp() * (theirs - mine).where(finite, 0.0)).sum()
    return loss + distil * divergence
