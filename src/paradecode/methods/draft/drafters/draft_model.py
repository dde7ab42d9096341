"""A second, smaller model drafts; with nested exits it runs as deep as each token needs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, Forward, Overwrite, Reply, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import DraftRows, Needs, Nodes, Proposal, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.source import NO_TOKENS, LevelRows, Source
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
@dataclass
class DraftModel(ModelDrafter):
    """A small model drafts a tree (Leviathan et al. 2023; Chen et al. 2023, arXiv 2302.01318).

    With ``width`` 1 the draft is a chain. Its own K/V cache follows by itself: accepted rows stay,
    others are dropped, and what it has not seen comes with its next forward.

    When: the target is several times as large as the draft model, and what is written is new, so
    that there is nothing to copy.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    width: int = parameter(3, 1, 16, "candidates of each node; 1 drafts a chain")

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        calibration = seq.shared("draft-model", Calibration)
        return self.grow(seq, limit, Source(DRAFT), self.width, calibration)


# S2D: a draft model with several exits; a token leaves at the first exit that is sure of it.

PIECE = 64
"""The most rows of one forward that catches up with the text."""


@dataclass
class Stage:
    """The layers between two exits.

    Attributes:
        rows: number of the text's rows that have keys and values in these layers.
        queue: float32 [hidden size] each; states of the rows behind them, from the exit before.
    """

    layers: tuple[int, ...]
    rows: int = 0
    queue: list[NDArray[np.float32]] = field(default_factory=list)

    def crop(self, rows: int) -> None:
        """Forget the rows behind the first ``rows`` rows of the text."""
        del self.queue[max(rows - self.rows, 0) :]
        self.rows = min(self.rows, rows)


@dataclass
class NestedRows(LevelRows):
    """The draft model's view of one request. Row i of the text is in slot i of its cache.

    The prompt runs through all layers. This object manages the rows behind it: it knows how far
    each stage has come, and replaces rows whose tokens were rejected.

    Attributes:
        exits: number of layers before each exit, ascending.
        sure: the least probability of an exit's best token with which a row leaves there.
        share: share of the draft model that a row runs, as a moving average.
    """

    exits: tuple[int, ...]
    sure: float
    share: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        starts = (0, *self.exits)
        self._stages = [Stage(tuple(range(a, b))) for a, b in zip(starts, self.exits)]
        self._whole, self._held = 0, NO_TOKENS

    def rows(self, seq: TokenSequence, limit: int) -> NestedRows:
        """The rows for a draft of at most ``limit`` tokens."""
        self._seq, self.depth = seq, min(limit, seq.room_for(DRAFT))
        self.reading = 0.0
        if not self._whole:
            self.reading = self.seconds(len(seq.pending_for(DRAFT))) - self.seconds(1)
        return self

    def seconds(self, rows: int) -> float:
        return self.share * (self._seq.step_seconds(rows, DRAFT) or 0.0)

    def look(
        self, tree: TokenTree, leaves: Nodes, own: list[int], states: bool
    ) -> Generator[Forward, Reply, DraftRows]:
        seq, last = self._seq, self.exits[-1] - 1
        pending, facts = seq.pending_for(DRAFT), seq.about(DRAFT)
        if not self._whole:
            layers = None if last + 1 == facts.layers else tuple(range(last + 1))
            reply = yield Forward(pending, layers=layers, hidden=(last,) * states, model=DRAFT)
            text = seq.tokens
            self._whole = len(facts.vocabulary.translate(text) if facts.vocabulary else text)
            for stage in self._stages:
                stage.rows = self._whole
            return DraftRows(DRAFT, reply.logits, reply.hidden.get(last, _NO_STATES)[-1:])
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
        """Run the rows that a stage lacks; rows that leave it wait in front of the next stage."""
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


_NO_STATES = np.empty((0, 0), np.float32)


def read_exits(listed: str) -> tuple[int, ...]:
    """The layers in a text such as ``'6 9 12'``; raises ValueError unless they ascend from 1 on."""
    numbers = listed.split()
    if not all(one.isascii() and one.isdecimal() and len(one) < 6 for one in numbers):
        raise ValueError("give numbers of layers separated by spaces, as in '6 9 12'")
    exits = tuple(map(int, numbers))
    if any(low >= high for low, high in zip((0, *exits), exits)):
        raise ValueError("exits must ascend, and the first must have a layer before it")
    return exits


def usual_exits(layers: int) -> tuple[int, ...]:
    """Exits behind half of the layers, behind three quarters, and behind all."""
    return tuple(sorted({-(-layers // 2), -(-layers * 3 // 4), layers}))


@drafter(
    "s2d",
    paper="S2D: Sorted Speculative Decoding",
    arxiv="2407.01955",
    url="https://github.com/parsareal/SD2",
    aliases=("sd2",),
    models=(DRAFT,),
)
@dataclass
class SortedDraft(ModelDrafter):
    """A draft model with nested exits runs as deep as each token needs (Kavehzadeh et al. 2024).

    Behind some of its layers the model's last norm and LM head guess. A guess whose best token has
    at least the probability ``sure`` is taken there; otherwise the row goes on to the next exit.
    Rows that left early wait before the deeper layers, and run through them when a later row gets
    there, so every row sees what it would see in a whole forward. Rows of rejected tokens are
    dropped. The draft is a chain.

    A token is drawn from the row of the exit that made its guess, so every verifier stays exact.
    The published code takes each exit's best token and tests it as if it had been drawn, which is
    biased. Its trees of 60 nodes are not here: a level would run as deep as its least sure node,
    and a draft model's trees gain little (``docs/training.md``).

    When: as ``draft-model``, and the exits were trained (``paradecode train sorted``).
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    exits: str = text(read_exits, "layers before each exit: '6 9 12'; by default half, 3/4 and all")
    sure: float = parameter(0.5, 0.0, 2.0, "probability that leaves early; above 1 none does")
    _rows: NestedRows | None = field(default=None, init=False, repr=False)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        if self._rows is None:
            layers = seq.about(DRAFT).layers
            exits = read_exits(self.exits) or usual_exits(layers)
            if exits[-1] > layers:
                fix = f"the draft model has {layers} layers"
                raise InvalidInput("s2d.exits", self.exits, fix)
            self._rows = NestedRows(exits, self.sure)
        # Settings that hardly differ learn together.
        calibration = seq.shared(f"s2d {self._rows.exits} {self.sure:.2f}", Calibration)
        return self.grow(seq, limit, self._rows, 1, calibration)
