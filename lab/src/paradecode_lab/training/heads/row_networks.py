"""Networks of rows that follow every token of a text and pass the target's own layers.

The rows are prompt tokens (PPD), pseudo states (Hidden Transfer) or masks (FlexDraft).
"""

from __future__ import annotations

from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import attention
from paradecode.models.heads import HeadFile
from paradecode.models.heads.flexdraft import own_attention
from paradecode_lab.training.heads.network import HeadNetwork, Rows, Target


class RowNetwork(HeadNetwork):
    """Base class: extra rows follow each token of a text; each sees the text up to this token.

    A row also sees the extra rows of its token before itself. Nothing else sees the extra rows, so
    the text's own forward needs no gradient.

    Attributes:
        own: the layers that the extra rows pass.
        mutual: whether all extra rows of a token see one another.
    """

    mutual = False

    def __init__(self, file: HeadFile, target: Target, scale: Tensor) -> None:
        super().__init__(file, target, scale)
        assert target.model is not None
        self.model = self.own = target.model

    def entering(self, layer: int, states: Tensor, count: int) -> Tensor:
        """Return the extra rows [R, rows, D] that enter at a layer.

        They come after the rows that entered at earlier layers.

        Args:
            layer: index of the layer.
            states: [R, D], the layer's inputs at the tokens that the rows follow.
            count: the most rows after a token.
        """
        raise NotImplementedError

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        made: list[list[Tensor]] = [[] for _ in range(count)]
        for (first, length, begin), begun in zip(rows.spans, rows.begun):
            behind = torch.arange(begin - first, length - 1)
            tokens = torch.cat([begun[None], rows.tokens[first : first + length - 1]])
            state = self._guessing(tokens, behind, count)
            for level in range(count):
                made[level].append(state[: max(len(behind) - level, 0), level])
        return [torch.cat(each) for each in made]

    def _guessing(self, tokens: Tensor, behind: Tensor, count: int) -> Tensor:
        """Return the inputs of the LM head, [R, count, D], after R positions of a text."""
        return self._behind(tokens, behind, count)

    def _behind(self, tokens: Tensor, behind: Tensor, count: int) -> Tensor:
        """Return the normed last states [R, count, D] of ``count`` extra rows after R positions.

        Args:
            tokens: int64, the text.
            behind: int64 [R], the positions that the rows follow.
        """
        model = self.model
        at = torch.arange(len(tokens))
        causal = at[:, None] >= at
        if model.config.sliding_window:
            causal &= at[:, None] - at < model.config.sliding_window
        kept: list[tuple[Tensor, Tensor]] = []

        def of_text(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kept[:] = [(k, v)]
            return attention(q, k, v, causal)

        def of_rows(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = kept[0]
            return attention(q, torch.cat([keys, k]), torch.cat([values, v]), seen)

        text, known = model.embed(tokens), model.rows(at)
        x = text.new_empty(len(behind), 0, text.shape[-1])
        for layer in range(model.config.layers):
            fresh = self.entering(layer, text[behind], count)
            if fresh.shape[1]:
                x = torch.cat([x, fresh], 1)
                places, seen = self._sight(at, behind, x.shape[1])
                own_known = model.rows(places)
            with torch.no_grad():
                text = model.layer(layer, text, known, of_text)
            if x.shape[1]:
                x = self.own.layer(layer, x.flatten(0, 1), own_known, of_rows).unflatten(
                    0, (len(behind), -1)
                )
        return self.target.final(x)

    def _sight(self, at: Tensor, behind: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the positions of ``count`` rows after each token, and a mask of what they see.

        The columns of the mask are the rows of the text, then the extra rows.
        """
        places = (behind[:, None] + 1 + torch.arange(count)).flatten()
        order = torch.arange(len(places))
        chain = order // count
        own = chain[:, None] == chain
        if not self.mutual:
            own &= order[:, None] >= order
        before = at <= behind.repeat_interleave(count)[:, None]
        seen, window = torch.cat([before, own], 1), self.model.config.sliding_window
        if window:
            seen &= places[:, None] - torch.cat([at, places]) < window
        return places, seen


class PromptNetwork(RowNetwork):
    """PPD's network, whose extra rows are prompt tokens."""

    def __init__(self, file: HeadFile, target: Target, scale: Tensor) -> None:
        super().__init__(file, target, scale)
        self.heads = len(self.parameters["prompt_embeddings"])

    def entering(self, layer: int, states: Tensor, count: int) -> Tensor:
        prompts = self.parameters["prompt_embeddings"][: 0 if layer else count]
        return prompts.expand(len(states), -1, -1)


class TransferNetwork(RowNetwork):
    """Hidden Transfer's network: matrices make the extra rows from states of the middle layers."""

    def __init__(self, file: HeadFile, target: Target, scale: Tensor) -> None:
        super().__init__(file, target, scale)
        self.heads = len(file.taps)

    def entering(self, layer: int, states: Tensor, count: int) -> Tensor:
        levels = [n for n, tap in enumerate(self.file.taps[:count]) if tap + 1 == layer]
        rows = [F.linear(states, self.parameters[f"transfer.{n}.weight"]).float() for n in levels]
        return torch.stack(rows, 1) if rows else states[:, None][:, :0]


class FlexDraftNetwork(RowNetwork):
    """FlexDraft's network, whose extra rows are masks.

    The masks enter in the middle of the layers, see one another, and have their own attention
    projections there. The first mask stands for the token that is already known when a draft
    begins.
    """

    mutual = True

    def __init__(self, file: HeadFile, target: Target, scale: Tensor) -> None:
        super().__init__(file, target, scale)
        self.heads, self.own = file.block_size - 1, copy(self.model)
        own = {
            f"layers.{tap + 1}.{ours}": self.parameters[f"layers.{number}.self_attn.{theirs}"]
            for number, tap in enumerate(file.taps)
            for ours, theirs in own_attention(self.model.config)
        }
        self.own.w = self.model.w | own

    def entering(self, layer: int, states: Tensor, count: int) -> Tensor:
        masks = count if layer == self.file.taps[0] + 1 else 0
        return self.parameters["mask_embedding"].expand(len(states), masks, -1)

    def _guessing(self, tokens: Tensor, behind: Tensor, count: int) -> Tensor:
        """Return the masks' states, [R, count, 2 D], each beside the known token's embedding."""
        masks = self._behind(tokens, behind, self.file.block_size)[:, 1 : count + 1]
        known = self.model.embed(tokens[behind + 1])[:, None].expand(masks.shape)
        return torch.cat([masks, known], -1)

    def say(self, state: Tensor, level: int) -> Tensor:
        p, name = self.parameters, "anchor_bias_mlp"
        masks, known = state.chunk(2, -1)
        both = torch.cat([known, masks], -1)
        inner = F.silu(F.linear(both, p[f"{name}.0.weight"], p[f"{name}.0.bias"]))
        added = F.linear(inner, p[f"{name}.2.weight"], p[f"{name}.2.bias"])
        return (F.linear(masks, self.target.rows) + added).float()
