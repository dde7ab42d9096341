"""Rows of the target that see few of the cached keys, with a small model that guesses ahead of
them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, TARGET, Forward, ModelFacts, Reply, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.base import DraftRows, Nodes
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.exit_rows import ExitRows
from paradecode.methods.draft.path_rows import Path, PathRows

CHUNK = 8
"""Neighbouring keys that are chosen together; more choose faster, and less exactly."""
SINKS, WINDOW = 16, 240
"""Number of the first and of the latest keys that the small model sees; more cost more."""
SHORT = 64
"""The most uncached tokens that count as a step; more of them are a prompt."""
MOST = 256 << 20
"""The most bytes of attention weights that all requests of a step may ask for."""


def farthest(facts: ModelFacts, neighbours: int = 0) -> int:
    """The most cached keys with which a row's attention weights may be read, beside other
    requests."""
    return MOST // (4 * facts.layers * facts.heads * (1 + neighbours))


def check(facts: ModelFacts, prompt: int, keys: int) -> None:
    """Raise InvalidInput unless ``keys`` can be chosen behind a prompt of so many tokens."""
    fix = ""
    if not facts.gives_attention:
        fix = "this backend gives no attention weights: use one process"
    elif prompt > max(keys, farthest(facts)):
        most = farthest(facts)
        fix = f"it reads the attention of this model to at most {most} tokens, not {prompt}"
    if fix:
        raise InvalidInput("decoder", "triforce", fix)


def chosen(shares: NDArray[np.floating], keys: int, recent: int) -> tuple[NDArray[np.int32], int]:
    """int32, the early slots to keep, ascending; and the slot from which on all slots are kept.

    Args:
        shares: float [n], the share of the attention that each cached key got.
        keys: number of slots to keep, with at least the ``recent`` latest ones.
    """
    end = max(len(shares) - recent, 0) // CHUNK * CHUNK
    chunks = shares[:end].reshape(-1, CHUNK).sum(1)
    chunks[:1] = np.inf  # The first keys are where attention goes that finds nothing.
    best = np.argsort(-chunks, kind="stable")[: max(keys - (len(shares) - end), 0) // CHUNK]
    slots = np.sort(best)[:, None] * CHUNK + np.arange(CHUNK)
    return slots.ravel().astype(np.int32), end


@dataclass
class TwoLevels:
    """The rows of one draft, which is a chain.

    The small model guesses the tokens of the target with few keys. One forward of the target with
    few keys has the row that is needed now, and the rows that are needed next if the guesses are
    right. The guesses change only the number of forwards, never the rows.

    Attributes:
        guesses: number of tokens that the small model guesses ahead.
        visible: cached slots of the target that its rows see; None means all.
        noise: whether guesses may use the noise of the target's draw.
        pace: forwards for each row that is needed, as a moving average; kept from draft to draft.
    """

    seq: TokenSequence
    limit: int
    guesses: int
    visible: NDArray[np.int32] | None
    noise: bool
    pace: float
    model: str = field(default=TARGET, init=False)
    exit: ExitRows | None = field(default=None, init=False)
    room: int = field(default=1, init=False)
    reading: float = field(default=0.0, init=False)  # The small model's: it has few keys.

    def __post_init__(self) -> None:
        seq = self.seq
        whole = tuple(range(seq.about().layers))
        self._target = PathRows(seq, TARGET, whole, self.visible)
        self.depth = min(self.limit, (seq.scratch - len(seq.pending)) // (1 + self.guesses))
        if self.guesses:
            behind = len(seq.pending_for(DRAFT))
            held = len(seq.tokens) - behind
            self._small = PathRows(seq, DRAFT)
            if behind <= SHORT and held > SINKS + WINDOW:
                ends = np.arange(SINKS), np.arange(held - WINDOW, held)
                self._small.visible = np.concatenate(ends).astype(np.int32)

    def rows(self, seq: TokenSequence, limit: int) -> TwoLevels:
        return self

    def seconds(self, rows: int) -> float:
        keys = None if self.visible is None else len(self.visible)
        seconds = self.seq.step_seconds(1 + self.guesses, TARGET, keys) or 0.0
        if self.guesses:
            small = self.seq.step_seconds(1, DRAFT, SINKS + WINDOW) or 0.0
            seconds += self.guesses * small
        return self.pace * seconds

    def look(
        self, tree: TokenTree, leaves: Nodes, own: list[int], states: bool
    ) -> Generator[Forward, Reply, DraftRows]:
        path = tuple(tree.tokens_to(int(leaves[0])))
        self._target.states = states
        missing = path not in self._target.found
        if missing:
            guessed = yield from self._guessed(path)
            yield from self._target.run((*path, *guessed))
        self.pace += 0.1 * (missing - self.pace)
        return DraftRows(TARGET, *self._target.found[path])

    def _guessed(self, path: Path) -> Generator[Forward, Reply, Path]:
        """The path with the tokens that the small model guesses behind it."""
        guessed: Path = ()
        # What comes behind the deepest row is not asked for.
        count = min(self.guesses, self.depth - 1 - len(path))
        while len(guessed) < count and self.seq.room_for(DRAFT) > len(path) + len(guessed):
            now = (*path, *guessed)
            yield from self._small.run(now)
            logits, _ = self._small.found[now]
            _, ids, _ = candidates(self.seq, logits, [list(now)], 1, None, self.noise)
            guessed = (*guessed, int(ids[0, 0]))
        return guessed
