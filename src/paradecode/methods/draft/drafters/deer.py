"""A masked diffusion model drafts: all masks behind the text in one forward.

A masked diffusion model predicts all levels of a draft in one forward over masks behind the text.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, Forward, Reply, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.canvas.caches.base import RowPlan, everything, exact_prefix, marks
from paradecode.methods.canvas.canvas import Canvas, Window
from paradecode.methods.canvas.feasible import Tokens
from paradecode.methods.canvas.forwards import forward_of
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import LAST, DraftRows, Needs, Proposal, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.source import LevelRows
from paradecode.methods.parts import parameter


@dataclass
class MaskSource:
    """The draft model of one request, with cached keys and values that it keeps from draft to
    draft.

    With causal attention, or with blocks, these are exactly the text's. With full attention they
    depend on all that follows, so those of earlier drafts are only nearly right.

    Args:
        masks: masks behind the text, for full attention; 0 is as many as the output has room for.
        refresh: drafts after which everything is computed again, for full attention.
    """

    masks: int
    refresh: int
    stored: Tokens | None = field(default=None, init=False)
    age: int = field(default=0, init=False)

    def rows(self, seq: TokenSequence, limit: int) -> LevelRows:
        """The rows of a draft. Raises InvalidInput for a draft model without a mask token."""
        facts = seq.about(DRAFT)
        if facts.mask_token is None:
            fix = "it has no mask token: use the method draft-model, or give a diffusion model"
            raise InvalidInput("draft_model", facts.name, fix)
        depth = min(limit, seq.room_for(DRAFT))
        if facts.attention == "causal":
            return CausalMasks(seq, depth, facts.mask_token, facts.shift)
        return CanvasMasks(self, seq, depth)


class MaskRows(LevelRows):
    """The rows of ``depth`` masks, which one forward computes; row i predicts level i + 1."""

    _seen: DraftRows | None = None

    def __init__(self, seq: TokenSequence, depth: int, mask: int) -> None:
        self._seq, self.depth, self._mask = seq, depth, mask

    @property
    def room(self) -> int:
        return 1 << 30  # No node has a row of its own.

    @property
    def rows(self) -> int:
        """Number of rows of the forward."""
        raise NotImplementedError

    def seconds(self, rows: int) -> float:
        if self._seen is not None:
            return 0.0
        return self._seq.step_seconds(self.rows, DRAFT) or 0.0

    def forward(self, hidden: tuple[int, ...]) -> Generator[Forward, Reply, DraftRows]:
        """Run the model over the masks."""
        raise NotImplementedError

    def look(
        self, tree: TokenTree, leaves: NDArray[np.int32], own: list[int], states: bool
    ) -> Generator[Forward, Reply, DraftRows]:
        if self._seen is None:
            seen = yield from self.forward((LAST,) if states else ())
            banned = np.array([self._mask], np.int32), np.array([-np.inf], np.float32)
            logits = seen.logits.with_bias([banned] * self.depth)
            self._seen = DraftRows(DRAFT, logits, seen.states)
        levels = [0 if leaf == ROOT else int(tree.depths[leaf]) for leaf in leaves.tolist()]
        seen = self._seen
        return DraftRows(DRAFT, seen.logits.select(levels), seen.states[levels if states else []])


class CausalMasks(MaskRows):
    """A chain of masks below the last committed token, which is never kept.

    In models whose rows predict the next position, that token's own row gives the first level.
    """

    def __init__(self, seq: TokenSequence, depth: int, mask: int, shift: bool) -> None:
        super().__init__(seq, depth, mask)
        self._pending, self._first = seq.pending_for(DRAFT), int(not shift)
        self._late = min(len(self._pending), len(seq.tokens) - seq.prompt_length)
        whole = seq.step_seconds(len(self._pending) + self._masks, DRAFT) or 0.0
        self.reading = whole - self.seconds(1)

    @property
    def rows(self) -> int:
        return self._late + self._masks

    @property
    def _masks(self) -> int:
        return self.depth - 1 + self._first

    def forward(self, hidden: tuple[int, ...]) -> Generator[Forward, Reply, DraftRows]:
        chain = TokenTree.chain(np.full(self._masks, self._mask, np.int32))
        reply = yield Forward(self._pending, tree=chain, hidden=hidden, model=DRAFT)
        wanted = np.arange(self.depth, dtype=np.int32) + self._first  # Row 0 is the text's last.
        states = _states(reply, len(self._pending) - 1 + wanted)
        return DraftRows(DRAFT, reply.logits.select(wanted.tolist()), states)


class CanvasMasks(MaskRows):
    """A canvas that holds the text, and behind it masks that see one another."""

    def __init__(self, source: MaskSource, seq: TokenSequence, depth: int) -> None:
        facts = seq.about(DRAFT)
        assert facts.mask_token is not None
        super().__init__(seq, depth, facts.mask_token)
        text, block = seq.pending_for(DRAFT), facts.block_length  # Of a canvas all is pending.
        self._source, self._start = source, len(text)
        if facts.attention == "block":
            end = -(-(len(text) + depth) // block) * block
            masks = min(end, facts.context_length) - len(text)
        else:
            masks, block = max(min(source.masks or seq.room, seq.room_for(DRAFT)), depth), 0
        self._canvas = canvas = Canvas(text, max(masks, 0), facts.mask_token, block, facts.shift)
        if source.stored is None:
            source.stored = text[: seq.found(DRAFT)]
        kept = source.stored[: canvas.end]
        canvas.stored[: len(kept)] = kept

    @property
    def rows(self) -> int:
        return int(self._plan.rows.sum())

    @cached_property
    def _plan(self) -> RowPlan:
        canvas, window = self._canvas, Window(self._start, self._start + self.depth)
        if canvas.block:
            return exact_prefix(canvas, window)
        if self._source.age % self._source.refresh == 0:
            return everything(canvas, window)
        rows = marks(canvas, window.start, window.end) | (~canvas.masked & ~canvas.final)
        return RowPlan(rows, rows, canvas.cached & ~rows)

    def forward(self, hidden: tuple[int, ...]) -> Generator[Forward, Reply, DraftRows]:
        canvas, source = self._canvas, self._source
        forward = forward_of(canvas, self._plan, np.arange(self.depth) + self._start)
        reply = yield replace(forward, hidden=hidden, model=DRAFT)
        source.stored = np.where(self._plan.store, canvas.tokens, canvas.stored)
        source.age += 1
        return DraftRows(DRAFT, reply.logits, _states(reply, forward.logits))


def _states(reply: Reply, rows: NDArray[np.int32] | None) -> NDArray[np.float32]:
    return reply.hidden[LAST][rows] if LAST in reply.hidden else np.empty((0, 0), np.float32)


@drafter(
    "deer",
    paper="DEER: Draft with Diffusion, Verify with Autoregressive Models",
    arxiv="2512.15176",
    aliases=("diffusion-draft", "dllm-draft"),
    models=(DRAFT,),
)
@dataclass
class Deer(ModelDrafter):
    """A diffusion model fills masks behind the text in one forward, and the target verifies them.

    However long it is, a draft costs one forward, and its guesses do not know of one another. So a
    wrong one does not spoil those behind it, and each is drawn from a q of its own, as verifiers
    that test p / q need it. Any draft model with a mask token serves: with full attention (LLaDA,
    Dream) the keys and values of earlier drafts are used again for ``refresh`` drafts, which cannot
    change the output; with blocks (SDAR) or causal attention they are exact.

    When: there is a small diffusion model that was trained on texts like the target's, such as one
    of ``train deer``.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    width: int = parameter(2, 1, 16, "candidates of each node; 1 drafts a chain")
    masks: int = parameter(32, 0, 4096, "full attention: masks behind the text; 0: max_tokens")
    refresh: int = parameter(16, 1, 4096, "full attention: drafts before all is computed anew")
    _source: MaskSource = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._source = MaskSource(self.masks, self.refresh)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        return self.grow(seq, limit, self._source, self.width, seq.shared("deer", Calibration))
