"""Falcon's head in PyTorch, and its LSTM before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.heads.lstm import lstm_rows
from paradecode_lab.training.heads.network import HeadNetwork, Rows, attend, first_rows

TOGETHER = 2
"""Number of tokens that are drafted as one block and see one another; 2, as in the paper."""
SHOWN = 0.4
"""Number of right inputs that the head is shown for each wrong guess at the beginning of training.

The number falls to 0 by the end of training. More make the first steps easier.
"""
LAYERS = 2
Carry = list[tuple[Tensor, Tensor]]
"""Hidden state and cell state of each LSTM layer."""


@dataclass(frozen=True, eq=False)
class _Text:
    """The rows of all texts, one text after the other.

    Attributes:
        inputs: [N, 2 D], inputs of the first LSTM layer.
        carry: hidden and cell state, each [N, D], of every LSTM layer after each row.
        keys, values: [N, G, size], the attention's keys and values of each row.
    """

    inputs: Tensor
    carry: Carry
    keys: Tensor
    values: Tensor

    def carried(self, rows: Tensor, begins: Tensor) -> Carry:
        """Return the LSTM's state after each of these rows.

        Args:
            rows: int64 [n]; a row before the beginning of its text gets zeros.
            begins: int64 [n], the first row of the text of each row.
        """
        there = (rows >= begins)[:, None]
        return [(h[rows.clamp(min=0)] * there, c[rows.clamp(min=0)] * there) for h, c in self.carry]


class FalconNetwork(HeadNetwork):
    """Falcon's head, with its losses and its glancing training (CSGD).

    In training, the first rows of some blocks get the right inputs instead of their own, so that
    the other rows learn to continue. The more guesses are wrong, the more blocks are chosen.
    """

    match, hard = 10.0, 0.1

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the states that draft each level, as the ``states`` of every head does.

        Every row that drafts ends a block of its own.
        """
        text, size = self._read(rows), self.file.block_size
        drafts = [rows.drafting(level) for level in range(count)]
        begins = torch.cat([torch.full_like(each, first)
                            for each, (first, _, _) in zip(drafts[0], rows.spans)])  # fmt: skip
        anchors = torch.cat(drafts[0])
        block = (anchors[:, None] + torch.arange(1 - size, 1)).maximum(begins[:, None])
        given = text.inputs[block]
        carry = text.carried(block[:, 0] - 1, begins)
        if self.progress < 1 and size > 1:
            given = self._shown(rows, text, given, carry, block)
        made, _, _ = self._guess(rows, text, drafts[0], given, carry, -size, [])
        said, own = [], list[tuple[Tensor, Tensor]]()
        for level, wanted in enumerate(drafts):
            turn, place = divmod(level, size)
            if level and place == 0:
                kept = _kept(drafts[level - size], wanted)
                ahead = torch.cat(wanted)[:, None] + torch.arange(level - size + 1, level + 1)
                embedded = F.embedding(rows.tokens[ahead], self.target.embed)
                given = torch.cat([embedded, made[kept]], -1)
                carry = [(h[kept], c[kept]) for h, c in carry] if turn > 1 else (
                    text.carried(torch.cat(wanted), begins[kept])
                )  # fmt: skip
                own = [(k[kept], v[kept]) for k, v in own]
                made, carry, fresh = self._guess(
                    rows, text, wanted, given, carry, level - size + 1, own
                )
                own += fresh
            said.append(made[_kept(drafts[level - place], wanted), place])
        return said

    def _read(self, rows: Rows) -> _Text:
        """Run all texts through the LSTM in one batch."""
        features = self.target.final(rows.features)
        inputs = torch.cat([F.embedding(rows.tokens, self.target.embed), features], -1)
        longest = max(count for _, count, _ in rows.spans)
        at = torch.stack([first + torch.arange(longest).clamp(max=count - 1)
                          for first, count, _ in rows.spans])  # fmt: skip
        none = torch.zeros(len(rows.spans), self.target.norm.shape[0])
        layers = self._along(inputs[at], [(none, none)] * LAYERS)
        carry = [(_flat(h, rows), _flat(c, rows)) for h, c in layers]
        places = torch.cat([torch.arange(count) for _, count, _ in rows.spans])
        _, keys, values = self.projected(0, carry[-1][0], places)
        return _Text(inputs, carry, keys, values)

    def _along(self, given: Tensor, carry: Carry) -> Carry:
        """Run m rows of n texts, [n, m, 2 D], through the LSTM.

        Returns:
            Hidden and cell states, each [n, m, D], of every layer.
        """
        p, made, x = self.parameters, Carry(), given
        for layer, (h, c) in enumerate(carry):
            bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
            gates = F.linear(x, p[f"lstm.weight_ih_l{layer}"], bias).float()
            x, cells = lstm_rows(gates, p[f"lstm.weight_hh_l{layer}"], h, c)
            made.append((x, cells))
        return made

    def _guess(
        self, rows: Rows, text: _Text, wanted: Sequence[Tensor], given: Tensor, carry: Carry,
        ahead: int, own: Sequence[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Carry, list[tuple[Tensor, Tensor]]]:  # fmt: skip
        """Draft n blocks of k rows.

        Args:
            rows: the rows of all texts.
            text: the results of the LSTM on these rows.
            wanted: for each text, the rows after which the blocks are drafted.
            given: [n, k, 2 D], inputs of the LSTM.
            carry: the LSTM's state before each block.
            ahead: offset of a block's first row from the row after which the block is drafted. It
                is -k for the first block: this block ends with that row, and replaces the text's
                own last rows.
            own: keys and values of the draft's earlier blocks, each [n, G, size].

        Returns:
            The states [n, k, D], the LSTM's state after each block, and the keys and values of the
            blocks.
        """
        size = given.shape[1]
        layers = self._along(given, carry)
        x, first = layers[-1][0], 1 - size if ahead < 0 else ahead
        places = torch.cat([each - begin for each, (begin, _, _) in zip(wanted, rows.spans)])
        places = (places[:, None] + first + torch.arange(size)).clamp(min=0)
        q, k, v = (part.unflatten(0, (-1, size))
                   for part in self.projected(0, x.flatten(0, 1), places.flatten()))  # fmt: skip
        fresh = list(zip(k.unbind(1), v.unbind(1)))
        counts = [len(each) for each in wanted]
        mixed = []
        for row in range(size):
            parts, at = [], 0
            for number, (begin, count, start) in enumerate(rows.spans):
                part = slice(at, at + counts[number])
                at += counts[number]
                parts.append(attend(
                    q[part, row], text.keys[begin : begin + count],
                    text.values[begin : begin + count], start - begin + min(ahead, 0),
                    [(key[part], value[part]) for key, value in [*own, *fresh]],
                ))  # fmt: skip
            mixed.append(torch.cat(parts))
        state = self.after("layers.0.", x, torch.stack(mixed, 1))
        return state, [(h[:, -1], c[:, -1]) for h, c in layers], fresh

    def _shown(self, rows: Rows, text: _Text, given: Tensor, carry: Carry, block: Tensor) -> Tensor:
        """Return the inputs of the first blocks, some of them replaced by the right inputs."""
        size = given.shape[1]
        ends = torch.cat([torch.full_like(each, first + count - 1) for each, (first, count, _)
                          in zip(rows.drafting(0), rows.spans)])  # fmt: skip
        answers = (block + size).minimum(ends[:, None])
        with torch.no_grad():
            made, _, _ = self._guess(rows, text, rows.drafting(0), given, carry, -size, [])
            features = text.inputs[:, text.inputs.shape[1] // 2 :]
            right, back = answers.unique(return_inverse=True)
            truth = F.linear(features[right], self.target.rows).argmax(-1)[back]
            wrong = (self.say(made, 0).argmax(-1) != truth).sum(1).cpu().numpy()
        # A chosen block is shown size / 2 right inputs on average. So this chance shows, over all
        # blocks, SHOWN * (1 - progress) of them for each wrong guess.
        chance = SHOWN * (1 - self.progress) * wrong / (size / 2)
        lot = self.random.integers(1, size, len(wrong))
        lot = torch.as_tensor(np.where(self.random.random(len(wrong)) < chance, lot, 0))
        shown = torch.arange(size) < lot[:, None]
        return torch.where(shown[..., None], text.inputs[answers], given)


def _flat(x: Tensor, rows: Rows) -> Tensor:
    """Turn a batch of texts [texts, m, D] into rows [N, D], without padding."""
    return torch.cat([each[:count] for each, (_, count, _) in zip(x, rows.spans)])


def _kept(before: Sequence[Tensor], now: Sequence[Tensor]) -> Tensor:
    return first_rows([len(each) for each in before], [len(each) for each in now])


def falcon_weights(d: int, random: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Return random initial weights of the LSTM, drawn as PyTorch draws them."""
    made = {}
    for layer, entering in enumerate((2 * d, d)):
        for name, shape in (("weight_ih", (4 * d, entering)), ("weight_hh", (4 * d, d)),
                            ("bias_ih", (4 * d,)), ("bias_hh", (4 * d,))):  # fmt: skip
            numbers = random.uniform(-(d**-0.5), d**-0.5, shape)
            made[f"lstm.{name}_l{layer}"] = numbers.astype(np.float32)
    return made
