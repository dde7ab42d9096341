"""Tentative rows of a model by the draft tokens that lead to them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Forward, Reply, TokenSequence
from paradecode.core.layers import Layers
from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.base import LAST
from paradecode.methods.draft.exit_rows import NO_TOKENS

Path = tuple[int, ...]
"""Draft tokens from the last committed token on; empty for the root."""
State = NDArray[np.float32]


@dataclass
class PathRows:
    """The rows of one model in one draft; only the part of a path that has not run yet is run.

    Attributes:
        layers: None, or the numbers of all layers: then the rows are for drafting only, and a
            verification drops them.
        visible: cached slots that the rows see; None means all.
        states: whether states are wanted as well.
        found: path -> logits (one row), and the state behind the last layer, float32 [1, hidden
            size], if it is wanted.
        taken: number of tentative rows in use.
    """

    seq: TokenSequence
    model: str
    layers: Layers | None = None
    visible: NDArray[np.int32] | None = None
    states: bool = False
    found: dict[Path, tuple[Logits, State]] = field(default_factory=dict)
    taken: int = 0
    _slots: dict[Path, int] = field(default_factory=dict)

    def run(self, path: Path) -> Generator[Forward, Reply, None]:
        """Run the missing rows of a path, from the root on, in one forward."""
        known, tokens, under = len(path), NO_TOKENS, 0
        while known and path[:known] not in self._slots:
            known -= 1
        chain = np.array(path[known:], np.int32)
        first = known + 1
        if not self.found:  # The root is not there either.
            first = 0
            pending = self.seq.pending_for(self.model)
            if self.layers is None:
                tokens, under = pending, -1
            else:
                chain = np.concatenate([pending, chain])
                under, self.taken = -1, len(pending)
            self._slots[()] = self.taken - 1
        else:
            under = self._slots[path[:known]]
        wanted = len(path) + 1 - first
        if not wanted:
            return
        rows = len(tokens) + len(chain)
        reply = yield Forward(
            tokens,
            tree=TokenTree.chain(chain),
            under=np.full(len(chain), under, np.int32),
            layers=self.layers,
            visible=self.visible,
            # A prompt without a tree may be cut if nothing is said about its rows.
            logits=np.arange(rows - wanted, rows, dtype=np.int32) if len(chain) else None,
            hidden=(LAST,) * self.states,
            model=self.model,
        )
        for row in range(wanted):
            place = path[: first + row]
            if place:
                self._slots[place] = self.taken
                self.taken += 1
            state = reply.hidden[LAST][rows - wanted + row :][:1] if self.states else _NO_STATE
            self.found[place] = reply.logits.select([row]), state


_NO_STATE = np.empty((0, 0), np.float32)
