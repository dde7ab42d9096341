"""HAMburger (arXiv 2505.20438): a model learns to read and to write groups of tokens.

The groups of a text follow from the entropies that the model, before this training, has at its
tokens. All weights are trained, together with the networks that merge a group and unroll it.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from math import gcd
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Transformer
from paradecode.backends.torch.network import compute
from paradecode.methods.retrained.layers import (
    END_STEPS,
    TokenGroups,
    merge_steps,
    unroll_steps,
)
from paradecode.models.adapter import check_base
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.batched import attention_in, spread
from paradecode_lab.training.retraining.run import Objective
from paradecode_lab.training.retraining.texts import MODEL, AnswerRows, causal_states
from paradecode_lab.training.unmasking.folder import save_folder

PARTS = "parts.safetensors"
LOW, RATIO = 0.05, 0.3
"""Limits of the entropy with which a token joins the group before it.

LOW is in nats, and the usual limit of the training. RATIO is relative to the highest entropy in the
group. An entropy below one of the limits suffices. Higher limits make longer groups.
"""
STOP = 0.5
"""Weight of the loss for the ends of groups."""


def lengths(entropies: Iterable[float], most: int, low: float = LOW) -> list[int]:
    """Return how many tokens each group has, by the paper's rule ``decreasing_v2``.

    Args:
        entropies: entropy at each token, in nats.
        most: the most tokens of a group.
        low: entropy below which a token joins any group, in nats.
    """
    made, highest = list[int](), 0.0
    for value in entropies:
        if made and made[-1] < most and (value < low or value < RATIO * highest):
            made[-1] += 1
            highest = max(highest, value)
        else:
            made.append(1)
            highest = value
    return made


class HamburgerObjective(Objective):
    """Trains a model together with the networks that merge and unroll groups.

    Args:
        checkpoint: a model from a folder or a GGUF file; the result is written in its precision.
        most: the most tokens of a group.
        blocks: number of layers of the small decoder that unrolls groups.
        low: entropy below which a token joins any group; see :func:`lengths`.
    """

    def __init__(
        self, checkpoint: Checkpoint, most: int, blocks: int, low: float, seed: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        config, width = checkpoint.config, checkpoint.config.hidden_size
        check_base(config)
        self.sizes = {
            "layers": config.layers, "hidden_size": width, "most": most, "blocks": blocks,
            "heads": gcd(config.heads, width // 2), "inner": config.intermediate_size,
        }  # fmt: skip
        super().__init__(checkpoint, device, "hamburger", low=low, **self.sizes)
        self.low = low
        self.model = Transformer(config, checkpoint.weights, torch.float32, device)
        self.before = copy(self.model)
        self.before.w = {name: tensor.clone() for name, tensor in self.model.w.items()}
        random, self.parts = np.random.default_rng(seed), dict[str, Tensor]()
        for name, shape in TokenGroups(self.sizes, {}).shapes().items():
            values = random.standard_normal(shape) / np.sqrt(shape[0])
            if name.endswith("norm"):
                values = np.ones(shape)
            elif name == "merge.o" or name.startswith("ends.b") or name[-2:] in (".o", "wn"):
                values = np.zeros(shape)  # At first a group is its mean, and blocks add nothing.
            self.parts[name] = torch.from_numpy(values).float().to(device)
        self.trained = {**self.model.w, **self.parts}

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the cross-entropy of the answers, plus the weighted loss of the ends of groups."""
        logits, right, ends, last = self.answers(rows, self.groups(rows))
        return F.cross_entropy(logits, right) + STOP * F.binary_cross_entropy(ends, last)

    @torch.no_grad()
    def groups(self, rows: AnswerRows) -> Tensor:
        """Return the answers' groups, int64 [G, 3]: text, first column and end of each group."""
        states, _ = rows.predicted(causal_states(self.before, rows))
        logs = self.before.logits(states).log_softmax(-1)
        entropies = spread(-(logs.exp() * logs).sum(-1), rows.answers)
        made = []
        for text, (start, end) in enumerate(zip(rows.start.tolist(), rows.end.tolist())):
            sizes = lengths(entropies[text, start:end].tolist(), self.sizes["most"], self.low)
            stops = start + np.cumsum(sizes)
            made += [(text, stop - size, stop) for size, stop in zip(sizes, stops.tolist())]
        return torch.tensor(made, device=self.device)

    def answers(self, rows: AnswerRows, groups: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Predict the answers' tokens, and the ends of groups.

        Returns:
            Logits [K, V] and right tokens [K] of the answers; the predicted chance, float32 [K],
            that a group ends with each token; and float32 [K], 1 where it does.
        """
        tokens, model, most = rows.tokens, self.model, self.sizes["most"]
        size, length = tokens.shape
        text, begin, end = groups.T
        at = begin[:, None] + torch.arange(most, device=self.device)
        inside = at < end[:, None]
        at = at.clamp(max=length - 1)
        words = model.embed(tokens.flatten()).unflatten(0, (size, length))
        own = words[text[:, None], at]
        # A group's row is in the column of its last token; the group's other columns are left out.
        x, several = words.clone(), end - begin > 1
        x[text[several], end[several] - 1] = self._merged(own, inside)[several]
        slots = rows.inside & ~rows.answers
        slots[text, end - 1] = True
        places = torch.arange(length, device=self.device)
        seen = (places <= places[:, None]) & slots[:, None]
        seen |= torch.eye(length, dtype=torch.bool, device=self.device)
        kept, x = [], x[slots]
        known = model.rows(places.expand(size, length)[slots])
        attend = attention_in(slots, seen[:, None])
        for layer in range(model.config.layers):
            x = model.layer(layer, x, known, attend)
            if layer in TokenGroups(self.sizes, {}).taps():
                kept.append(spread(x, slots)[text, begin - 1])
        read = torch.cat([torch.stack(kept, 1), own[:, : most - 1]], 1)
        numbers = torch.arange(read.shape[1], device=self.device).expand(read.shape[:2])
        said = compute(unroll_steps(self.sizes), {"x": read, "places": numbers}, self.parts)
        told = torch.cat([kept[-1][:, None], said[:, len(kept) :]], 1)[inside]
        ends = compute(END_STEPS, {"x": told}, self.parts)[:, 0]
        last = (at + 1 == end[:, None])[inside].float()
        return model.logits(told), tokens[text[:, None], at][inside], ends, last

    def _merged(self, words: Tensor, inside: Tensor) -> Tensor:
        """Return the merged row of each group: [G, most, D] -> [G, D]."""
        shape, share = inside.shape, inside[..., None] / inside.sum(1)[:, None, None]
        mean = (words * share).sum(1, keepdim=True).expand(words.shape)
        given = {
            "x": words, "mean": mean, "outside": (~inside).long(),
            "places": torch.arange(shape[1], device=self.device).expand(shape),
            "zeros": torch.zeros(shape, dtype=torch.int64, device=self.device),
        }  # fmt: skip
        return compute(merge_steps(self.sizes), given, self.parts)[:, 0]

    def export(self, folder: Path) -> None:
        """Write the folder MODEL and the file PARTS."""
        save_folder(self.checkpoint, self.model.w, folder / MODEL)
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in self.parts.items()}
        TokenGroups(self.sizes, tensors).save(folder / PARTS)
