"""Record samples for the selector of delayed trees, at every position of the target's own texts.

At each position the draft model's best continuations are ranked once. The ranks of the tokens that
the target chose tell how many tokens of any tree would have been accepted. The paper's sampled
trees (every 16 tokens, four at each root) are therefore not needed: drafts are chosen here and not
drawn, and the number of accepted tokens is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.llm import LLM
from paradecode.methods.draft.budgets.delayed import Situation, Situations
from paradecode.methods.draft.budgets.networks import SCALARS, STATES, choices
from paradecode.methods.draft.budgets.shapes import BRANCHES, Action
from paradecode.methods.draft.contracts import Budget, DraftRows, Seconds
from paradecode.methods.specs import Spec
from paradecode_lab.measure.prompts import Item
from paradecode_lab.training.acceptance.workload import draft_size, drafting, play
from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.samples import MOST_NUMBERS, Origin, Samples

MISSED = BRANCHES
"""Rank given to a token that is not among the draft's ``BRANCHES`` best ones."""
SITUATION = (*STATES, "scalars")

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SelectorSamples(Situation, Samples):
    """N positions of the texts, in order, with the network's inputs there.

    Attributes:
        count: the most nodes of an action.
        tokens: float32 [N, A], number of tokens that a step with each of ``choices(count)`` gives
            there. The token that the verification itself gives is included.
        seconds: float32 [A], time of each action on this machine, including the draft's first
            forward and the verification.
        prompt: float32 [N], index of the conversation.
    """

    kind: ClassVar = "selector samples 1"
    axes: ClassVar = {
        "p_before": "NP", "q_before": "NQ", "q_now": "NQ", "scalars": "NS", "tokens": "NA",
        "seconds": "A", "prompt": "N",
    }  # fmt: skip

    count: int
    tokens: Array
    seconds: Array
    prompt: Array

    @property
    def situation(self) -> dict[str, Array]:
        """The inputs of the selector's network, by name."""
        return {name: getattr(self, name) for name in SITUATION}

    @classmethod
    def load(cls, path: Path, origin: Origin, **known: Any) -> SelectorSamples:
        """Read samples, and check that they have this origin and ``count``."""
        sizes = {"A": len(choices(known["count"])), "S": len(SCALARS)}
        return super().load(path, origin, **known, **sizes)


@dataclass
class TextRecorder(Budget):
    """A budget that records samples during plain decoding.

    One level is drafted at each position, and none of it is verified.

    Attributes:
        rows: the network's inputs at each position, or None where they are unknown.
        ranks: rank of the target's token among the draft's choices at each position.
    """

    rows: list[Situation | None]
    ranks: list[int] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    """Seconds of a draft forward with 1 to ``BRANCHES`` rows; 0 if not measured."""
    verify: list[float] = field(default_factory=list)
    """Seconds of a verification of 0 to ``count`` nodes; 1 if not measured."""
    _situations: Situations = field(default_factory=Situations)
    _children: list[int] | None = None
    _situation: Situation | None = None

    def __post_init__(self) -> None:
        self.reads_draft = self.reads_target = True

    def limit(self, seq: TokenSequence) -> int:
        self._children = self._situation = None
        if not self.verify:
            self.verify = [seq.step_seconds(1 + nodes) or 1.0 for nodes in range(self.count + 1)]
        return self.count

    def expand(
        self, seq: TokenSequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        self.draft = self.draft or [seconds(1 + rows) for rows in range(BRANCHES)]
        return leaves if len(tree) == 0 else leaves[:0]

    def grow(
        self,
        seq: TokenSequence,
        tree: TokenTree,
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
    ) -> NDArray[np.bool_]:
        return estimates > 0

    def see_draft(
        self, seq: TokenSequence, tree: TokenTree, nodes: NDArray[np.int32], rows: DraftRows
    ) -> None:
        self._situation = self._situations.see_draft(seq, tree, nodes, rows, self.draft[0])

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        self._children = tree.tokens[tree.children(ROOT)].tolist()
        return EMPTY

    def see_target(
        self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict
    ) -> None:
        self._situations.see_target(seq, tree, reply, verdict)
        token = verdict.tokens[0]
        best = (self._children or [])[:BRANCHES]
        self.ranks.append(best.index(token) if token in best else MISSED)
        self.rows.append(self._situation)


def record_selector_samples(
    llm: LLM, items: Sequence[Item], spec: Spec, params: SamplingParams, progress: Progress
) -> SelectorSamples:
    """Decode a workload plainly, and record what the selector would have seen at each position.

    Raises:
        InvalidInput: if the method of ``spec`` does not draft with a model, or drafts nothing.
    """
    decoder = drafting(spec)
    count = draft_size(decoder)
    settings = {entry.name: entry.default for entry in spec.method.parameters} | dict(spec.settings)
    if not decoder.drafter.needs.levels or settings.get("width", BRANCHES) < 2 or count < 1:
        fix = "name a method that drafts with a model, with width=4 and num_speculative_tokens"
        raise InvalidInput("--decoder", str(spec), fix)
    names = {item.prompt: number for number, item in enumerate(items)}
    recorders = [TextRecorder(count, []) for _ in items]
    play(llm, items, spec, params, recorders.__getitem__, progress)
    options, width = choices(count), 0
    situations: list[Situation] = []
    tokens: list[Array] = []
    prompt: list[float] = []
    timed = next((r for r in recorders if r.draft and r.verify), None)
    for item, recorder in zip(items, recorders, strict=True):
        gained = tokens_of(np.array(recorder.ranks, np.int64), options)
        for place, situation in enumerate(recorder.rows[: len(gained)]):
            if situation is not None and width * len(prompt) < MOST_NUMBERS:
                width = situation.p_before.shape[1] + 2 * situation.q_now.shape[1] + len(options)
                situations.append(situation)
                tokens.append(gained[place])
                prompt.append(float(names[item.prompt]))
    if timed is None or not situations:
        raise InvalidInput("samples", 0, "give more prompts or tokens: no position was recorded")
    joined = {n: np.concatenate([getattr(s, n) for s in situations]) for n in SITUATION}
    seconds = np.array([seconds_of(each, timed.draft, timed.verify) for each in options])
    return SelectorSamples(
        **joined, count=count, tokens=np.array(tokens, np.float32),
        seconds=seconds.astype(np.float32), prompt=np.array(prompt, np.float32),
    )  # fmt: skip


def tokens_of(ranks: NDArray[np.int64], options: Sequence[Action]) -> NDArray[np.float32]:
    """Return how many tokens a step with each action gives at each position, float32 [n, A].

    Args:
        ranks: int64 [L], rank of each token among the draft's choices for its position. The last
            positions have no result (n < L), because the text after them is not known.
        options: the actions.
    """
    deepest = max(action.trunk + action.length for action in options)
    places = np.arange(max(len(ranks) - deepest, 0))
    run = np.zeros(len(ranks) + 1, np.int64)  # How many first choices in a row are right.
    for place in range(len(ranks) - 1, -1, -1):
        run[place] = run[place + 1] + 1 if ranks[place] == 0 else 0
    tokens = np.ones((len(places), len(options)), np.float32)
    for column, action in enumerate(options):
        trunk = np.minimum(run[places], action.trunk)
        tokens[:, column] += trunk
        if action.length:
            fork = places + action.trunk
            taken = (trunk == action.trunk) & (ranks[fork] < action.branches)
            tokens[:, column] += taken * (1 + np.minimum(run[fork + 1], action.length - 1))
    return tokens


def seconds_of(action: Action, draft: Sequence[float], verify: Sequence[float]) -> float:
    """Return the seconds of an action, with the draft's first forward, which precedes the choice.

    Args:
        draft: seconds of a draft forward with 1, 2, ... rows.
        verify: seconds of a verification of 0, 1, ... nodes.
    """
    narrow = max(1, action.trunk + min(action.length, 1))
    wide = max(0, action.length - 1)
    return narrow * draft[0] + wide * draft[action.branches - 1] + verify[action.nodes]
