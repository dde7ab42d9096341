"""Drafters that run a second, smaller model.

``draft-model`` runs the whole model. ``s2d`` runs a model with nested exits as deep as each token
needs. ``deer`` runs a masked diffusion model, which predicts all levels of a draft in one forward
pass over masks after the text.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, Forward, Overwrite, Reply, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.canvas.caches.base import RowPlan, everything, exact_prefix, marks
from paradecode.methods.canvas.canvas import Canvas, Window
from paradecode.methods.canvas.feasible import Tokens
from paradecode.methods.canvas.forwards import forward_of
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.contracts import LAST, DraftRows, Nodes, Proposal
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.source import NO_STATES, NO_TOKENS, LevelRows, Looking, Source
from paradecode.methods.parts import parameter, text


@drafter(
    "draft-model",
    paper="Fast Inference from Transformers via Speculative Decoding",
    arxiv="2211.17192",
    aliases=("draft_model", "draft", "assisted", "speculative"),
    names={
        "num_assistant_tokens": "num_speculative_tokens",
        "assistant_confidence_threshold": "threshold",
        "draft_tokens": "num_speculative_tokens",
    },
    models=(DRAFT,),
)
class DraftModel(ModelDrafter):
    """A small model drafts a tree (Leviathan et al. 2023; Chen et al. 2023, arXiv 2302.01318).

    With ``width`` 1 the draft is a chain. The draft model's own K/V cache follows the text: rows of
    accepted tokens stay, other rows are dropped, and tokens that the draft model has not read are
    inputs of its next forward pass.

    When: the target is several times as large as the draft model, and the text is new, so that
    there is nothing to copy.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    width: int = parameter(3, 1, 16, "number of candidates of each node; 1 drafts a chain")

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        calibration = seq.shared("draft-model", Calibration)
        return self.grow(seq, limit, Source(DRAFT), self.width, calibration)


# S2D: a draft model with several exits; a row leaves at the first exit that is sure enough.

PIECE = 64
"""The most rows of one forward pass that catches up with the text."""


@dataclass
class Stage:
    """The layers between two exits.

    Attributes:
        rows: number of rows of the text whose keys and values these layers have.
        queue: hidden states of the rows after them, from the exit before; each is float32 [hidden
            size].
    """

    layers: tuple[int, ...]
    rows: int = 0
    queue: list[NDArray[np.float32]] = field(default_factory=list)

    def crop(self, rows: int) -> None:
        """Forget all rows after the first ``rows`` rows of the text."""
        del self.queue[max(rows - self.rows, 0) :]
        self.rows = min(self.rows, rows)


@dataclass
class NestedRows(LevelRows):
    """The draft model's rows in one request; row i of the text is in slot i of its K/V cache.

    The prompt runs through all layers. This object manages the rows after it: it records how far
    each stage has come, and replaces rows whose tokens were rejected.

    Attributes:
        exits: number of layers before each exit, ascending.
        sure: the least probability of an exit's best token at which a row leaves there.
        share: share of the draft model's work that a row takes, as a moving average.
    """

    exits: tuple[int, ...]
    sure: float
    share: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        starts = (0, *self.exits)
        self._stages = [Stage(tuple(range(a, b))) for a, b in zip(starts, self.exits)]
        self._whole, self._held = 0, NO_TOKENS

    def rows(self, seq: TokenSequence, limit: int) -> NestedRows:
        """Return this object as the rows for a draft of at most ``limit`` tokens."""
        self._seq, self.depth = seq, min(limit, seq.room_for(DRAFT))
        self.reading = 0.0
        if not self._whole:
            self.reading = self.seconds(len(seq.pending_for(DRAFT))) - self.seconds(1)
        return self

    def seconds(self, rows: int) -> float:
        return self.share * (self._seq.step_seconds(rows, DRAFT) or 0.0)

    def look(self, tree: TokenTree, leaves: Nodes, own: list[int], states: bool) -> Looking:
        seq, last = self._seq, self.exits[-1] - 1
        pending, facts = seq.pending_for(DRAFT), seq.about(DRAFT)
        if not self._whole:
            layers = None if last + 1 == facts.layers else tuple(range(last + 1))
            reply = yield Forward(pending, layers=layers, hidden=(last,) * states, model=DRAFT)
            text = seq.tokens
            self._whole = len(facts.vocabulary.translate(text) if facts.vocabulary else text)
            for stage in self._stages:
                stage.rows = self._whole
            return DraftRows(DRAFT, reply.logits, reply.hidden.get(last, NO_STATES)[-1:])
        path = [own[node] for node in tree.path(int(leaves[0]))]
        text = np.concatenate([pending, np.array(path, np.int32)])
        most = min(len(self._held), len(text) - 1)
        same = np.append(self._held[:most] == text[:most], False)
        for stage in self._stages:
            stage.crop(self._whole + int(same.argmin()))
        self._held = text
        head = facts.head_layers
        for number, stage in enumerate(self._stages, 1):
            reply = yield from self._run(stage, self._stages[number:][:1], text)
            best = reply.logits.log_probability(reply.logits.argmax()[:, None])
            if np.exp(best[0, 0]) >= self.sure:
                break
        ran = (stage.layers[-1] + 1 + number * head) / (facts.layers + head)
        self.share += 0.1 * (ran - self.share)
        return DraftRows(DRAFT, reply.logits, reply.hidden[stage.layers[-1]][-1:])

    def _run(
        self, stage: Stage, deeper: list[Stage], text: NDArray[np.int32]
    ) -> Generator[Forward, Reply, Reply]:
        """Run the missing rows of a stage; their outputs wait in the queue of the next stage."""
        end = self._whole + len(text)
        while True:
            at = np.arange(stage.rows, min(stage.rows + PIECE, end), dtype=np.int32)
            waiting = stage.queue[: len(at)]
            reply = yield Forward(
                text[at - self._whole],
                store=Overwrite(at),
                positions=at,
                visible=np.arange(stage.rows, dtype=np.int32),
                logits=np.array([len(at) - 1], np.int32),
                layers=stage.layers,
                hidden=stage.layers[-1:],
                resume=np.stack(waiting) if waiting else None,
                model=DRAFT,
            )
            del stage.queue[: len(at)]
            stage.rows += len(at)
            for one in deeper:
                one.queue += list(reply.hidden[stage.layers[-1]])
            if stage.rows == end:
                return reply


def read_exits(listed: str) -> tuple[int, ...]:
    """Parse layer numbers from a text such as ``'6 9 12'``.

    Raises:
        ValueError: if they are not numbers that ascend from 1 on.
    """
    numbers = listed.split()
    if not all(one.isascii() and one.isdecimal() and len(one) < 6 for one in numbers):
        raise ValueError("give numbers of layers separated by spaces, as in '6 9 12'")
    exits = tuple(map(int, numbers))
    if any(low >= high for low, high in zip((0, *exits), exits)):
        raise ValueError("exits must ascend, and the first must have a layer before it")
    return exits


def usual_exits(layers: int) -> tuple[int, ...]:
    """Return exits after half of the layers, after three quarters, and after all."""
    return tuple(sorted({-(-layers // 2), -(-layers * 3 // 4), layers}))


@drafter(
    "s2d",
    paper="S2D: Sorted Speculative Decoding",
    arxiv="2407.01955",
    url="https://github.com/parsareal/SD2",
    aliases=("sd2",),
    models=(DRAFT,),
)
class SortedDraft(ModelDrafter):
    """A draft model with nested exits runs as deep as each token needs (Kavehzadeh et al. 2024).

    After some of its layers the model's last norm and LM head guess a token. If the best token has
    at least the probability ``sure``, the guess is taken there; otherwise the row goes on to the
    next exit. Rows that left early wait before the deeper layers. They run through these layers
    when a later row gets there, so every row attends to the same rows as in a whole forward pass.
    Rows of rejected tokens are dropped. The draft is a chain.

    A token is sampled from the distribution of the exit that made its guess, so every verifier
    stays exact. The published code takes each exit's best token and tests it as if it had been
    sampled, which is biased. The paper's trees of 60 nodes are not implemented: a level would run
    as deep as its least sure node, and a draft model's trees gain little (``docs/training.md``).

    When: as ``draft-model``, and the exits were trained (``paradecode train sorted``).
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    exits: str = text(read_exits, "layers before each exit: '6 9 12'; by default half, 3/4 and all")
    sure: float = parameter(0.5, 0.0, 2.0, "least probability of an early exit; above 1: none")
    _rows: NestedRows | None = field(default=None, init=False, repr=False)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        if self._rows is None:
            layers = seq.about(DRAFT).layers
            exits = read_exits(self.exits) or usual_exits(layers)
            if exits[-1] > layers:
                fix = f"the draft model has {layers} layers"
                raise InvalidInput("s2d.exits", self.exits, fix)
            self._rows = NestedRows(exits, self.sure)
        # Requests whose settings hardly differ share a calibration.
        calibration = seq.shared(f"s2d {self._rows.exits} {self.sure:.2f}", Calibration)
        return self.grow(seq, limit, self._rows, 1, calibration)


# A masked diffusion model drafts: one forward fills all masks after the text.


class MaskRows(LevelRows):
    """Base class for ``depth`` masks in one draft forward pass; row i predicts level i + 1."""

    _seen: DraftRows | None = None

    def __init__(self, seq: TokenSequence, depth: int, mask: int) -> None:
        self._seq, self.depth, self._mask = seq, depth, mask

    @property
    def room(self) -> int:
        return 1 << 30  # Nodes have no rows, so there is no limit.

    @property
    def rows(self) -> int:
        """Number of rows in the forward pass."""
        raise NotImplementedError

    def seconds(self, rows: int) -> float:
        if self._seen is not None:
            return 0.0
        return self._seq.step_seconds(self.rows, DRAFT) or 0.0

    def forward(self, hidden: tuple[int, ...]) -> Looking:
        """Run the model over the masks."""
        raise NotImplementedError

    def look(self, tree: TokenTree, leaves: Nodes, own: list[int], states: bool) -> Looking:
        if self._seen is None:
            seen = yield from self.forward((LAST,) if states else ())
            banned = np.array([self._mask], np.int32), np.array([-np.inf], np.float32)
            logits = seen.logits.with_bias([banned] * self.depth)
            self._seen = DraftRows(DRAFT, logits, seen.states)
        levels = [0 if leaf == ROOT else int(tree.depths[leaf]) for leaf in leaves.tolist()]
        seen = self._seen
        return DraftRows(DRAFT, seen.logits.select(levels), seen.states[levels if states else []])


class CausalMasks(MaskRows):
    """A chain of masks after the last committed token; the masks' rows are never cached.

    In models with shifted logits, the row of that last token predicts the first level.
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

    def forward(self, hidden: tuple[int, ...]) -> Looking:
        chain = TokenTree.chain(np.full(self._masks, self._mask, np.int32))
        reply = yield Forward(self._pending, tree=chain, hidden=hidden, model=DRAFT)
        wanted = np.arange(self.depth, dtype=np.int32) + self._first  # Row 0 is the last token.
        states = _states(reply, len(self._pending) - 1 + wanted)
        return DraftRows(DRAFT, reply.logits.select(wanted.tolist()), states)


class CanvasMasks(MaskRows):
    """A canvas that holds the text and then masks; the masks attend to one another."""

    def __init__(self, source: Deer, seq: TokenSequence, depth: int, mask: int) -> None:
        facts = seq.about(DRAFT)
        super().__init__(seq, depth, mask)
        text, block = seq.pending_for(DRAFT), facts.block_length  # A canvas: the whole text.
        self._source, self._start = source, len(text)
        if facts.attention == "block":
            end = -(-(len(text) + depth) // block) * block
            masks = min(end, facts.context_length) - len(text)
        else:
            masks, block = max(min(source.masks or seq.room, seq.room_for(DRAFT)), depth), 0
        self._canvas = canvas = Canvas(text, max(masks, 0), mask, block, facts.shift)
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

    def forward(self, hidden: tuple[int, ...]) -> Looking:
        canvas, source = self._canvas, self._source
        forward = forward_of(canvas, self._plan, np.arange(self.depth) + self._start)
        reply = yield replace(forward, hidden=hidden, model=DRAFT)
        source.stored = np.where(self._plan.store, canvas.tokens, canvas.stored)
        source.age += 1
        return DraftRows(DRAFT, reply.logits, _states(reply, forward.logits))


def _states(reply: Reply, rows: NDArray[np.int32] | None) -> NDArray[np.float32]:
    return reply.hidden[LAST][rows] if LAST in reply.hidden else NO_STATES


@drafter(
    "deer",
    paper="DEER: Draft with Diffusion, Verify with Autoregressive Models",
    arxiv="2512.15176",
    aliases=("diffusion-draft", "dllm-draft"),
    models=(DRAFT,),
)
class Deer(ModelDrafter):
    """A diffusion model fills masks after the text in one forward, and the target verifies them.

    A draft costs one forward pass, however long it is, and its guesses are independent of one
    another. A wrong guess therefore does not spoil later ones. Each guess is sampled from its own
    distribution q, as verifiers that test p / q need it.

    Any draft model with a mask token serves. With full attention (LLaDA, Dream), keys and values of
    earlier drafts are used again for ``refresh`` drafts, which cannot change the output. With
    block-causal (SDAR) or causal attention they are exact.

    When: there is a small diffusion model that was trained on texts like the target's, such as a
    model made by ``train deer``.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    width: int = parameter(2, 1, 16, "number of candidates of each node; 1 drafts a chain")
    masks: int = parameter(32, 0, 4096, "full attention: masks after the text; 0: max_tokens")
    refresh: int = parameter(16, 1, 4096, "full attention: drafts until all rows run again")
    stored: Tokens | None = field(default=None, init=False, repr=False)
    age: int = field(default=0, init=False, repr=False)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        return self.grow(seq, limit, self, self.width, seq.shared("deer", Calibration))

    def rows(self, seq: TokenSequence, limit: int) -> LevelRows:
        """Return the rows of masks for a draft of at most ``limit`` tokens.

        Raises:
            InvalidInput: if the draft model has no mask token.
        """
        facts = seq.about(DRAFT)
        if facts.mask_token is None:
            fix = "it has no mask token: use the method draft-model, or give a diffusion model"
            raise InvalidInput("draft_model", facts.name, fix)
        depth = min(limit, seq.room_for(DRAFT))
        if facts.attention == "causal":
            return CausalMasks(seq, depth, facts.mask_token, facts.shift)
        return CanvasMasks(self, seq, depth, facts.mask_token)
