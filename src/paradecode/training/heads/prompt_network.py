"""PPD's prompt tokens in PyTorch: rows behind every token of a text, through all of the target."""

from __future__ import annotations

import torch
from torch import Tensor

from paradecode.backends.torch.model import attention
from paradecode.models.heads import HeadFile
from paradecode.training.heads.network import HeadNetwork, Rows, Target


class PromptNetwork(HeadNetwork):
    """Prompt row k behind a token sees the text up to it, and the prompt rows before its own.

    Nothing sees these rows, so the text's own pass needs no gradient.
    """

    def __init__(self, file: HeadFile, target: Target, scale: Tensor) -> None:
        super().__init__(file, target, scale)
        self.heads = len(self.parameters["prompt_embeddings"])

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        made: list[list[Tensor]] = [[] for _ in range(count)]
        for (first, length, begin), begun in zip(rows.spans, rows.begun):
            behind = torch.arange(begin - first, length - 1)
            tokens = torch.cat([begun[None], rows.tokens[first : first + length - 1]])
            state = self._behind(tokens, behind, count)
            for level in range(count):
                made[level].append(state[: max(len(behind) - level, 0), level])
        return [torch.cat(each) for each in made]

    def _behind(self, tokens: Tensor, behind: Tensor, count: int) -> Tensor:
        """[R, count, D]: what the LM head reads of the prompt rows behind R positions of a text."""
        model = self.target.model
        assert model is not None
        places = (behind[:, None] + 1 + torch.arange(count)).flatten()
        x = self.parameters["prompt_embeddings"][:count].repeat(len(behind), 1)
        chain, order = torch.arange(len(x)) // count, torch.arange(len(x))
        own = (chain[:, None] == chain) & (order[:, None] >= order)
        at = torch.arange(len(tokens))
        before = at <= behind.repeat_interleave(count)[:, None]
        causal, seen = at[:, None] >= at, torch.cat([before, own], 1)
        window = model.config.sliding_window
        if window:
            causal &= at[:, None] - at < window
            seen &= places[:, None] - torch.cat([at, places]) < window
        kept: list[tuple[Tensor, Tensor]] = []

        def of_text(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kept[:] = [(k, v)]
            return attention(q, k, v, causal)

        def of_prompts(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = kept[0]
            return attention(q, torch.cat([keys, k]), torch.cat([values, v]), seen)

        text, turns, own_turns = model.embed(tokens), model.angles(at), model.angles(places)
        for layer in range(model.config.layers):
            with torch.no_grad():
                text = model.layer(layer, text, *turns, of_text)
            x = model.layer(layer, x, *own_turns, of_prompts)
        return self.target.final(x).unflatten(0, (len(behind), count))
