"""Record samples for SpecDec++'s head: tokens of real drafts, and whether they were accepted.

The paper runs the draft model once over texts of the target in which 85 % of the tokens were
replaced by the draft model's own (token mixing). One forward then gives many samples with prefixes
like those of a draft. Here every sample is a token of a real draft after accepted tokens, so
nothing is mixed. The label is the engine's verdict, 0 or 1, and not min(1, p / q).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence, Verdict
from paradecode.core.logits import Logits
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import ROOT, TokenTree
from paradecode.llm import LLM
from paradecode.methods.draft.budgets.networks import ESTIMATES, HIDDEN
from paradecode.methods.draft.budgets.specdec import features
from paradecode.methods.draft.contracts import Budget, DraftRows
from paradecode.methods.specs import Spec
from paradecode_lab.measure.prompts import Item
from paradecode_lab.training.acceptance.workload import draft_size, drafting, play
from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.samples import MOST_NUMBERS, Samples

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class HeadSamples(Samples):
    """N draft tokens that were verified, in the order of verification.

    Attributes:
        reads: what ``inputs`` contains, ``states`` or ``estimates``; see ``ResidualHead``.
        inputs: float32 [N, H], the head's inputs.
        accepted: float32 [N], 1 for accepted tokens and 0 for others.
        probability: float32 [N], the draft model's probability of the token, or the drafter's
            estimate if it runs no model.
        prompt: float32 [N], index of the conversation that the token comes from.
    """

    kind: ClassVar = "acceptance samples 1"
    axes: ClassVar = {"inputs": "NH", "accepted": "N", "probability": "N", "prompt": "N"}

    reads: str
    inputs: Array
    accepted: Array
    probability: Array
    prompt: Array


@dataclass
class HeadRecorder(Budget):
    """A budget that cuts nothing, and records each verified token whose input is known.

    Attributes:
        prompt: index of the conversation.
        reads: what the inputs are; see :class:`HeadSamples`.
        rows: input, accepted, probability and conversation of each sample; all recorders share this
            list.
    """

    prompt: int
    reads: str
    rows: list[tuple[Array, float, float, float]]
    _states: dict[tuple[int, ...], tuple[Array, float]] = field(default_factory=dict)
    _logits: dict[int, Logits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reads_draft = self.reads == HIDDEN

    def limit(self, seq: TokenSequence) -> int:
        self._states, self._logits = {}, {}
        return super().limit(seq)

    def see_draft(
        self, seq: TokenSequence, tree: TokenTree, nodes: NDArray[np.int32], rows: DraftRows
    ) -> None:
        translated = seq.about(rows.model).vocabulary is not None
        for index, node in enumerate(nodes.tolist()):
            self._logits[node] = rows.logits.select([index])
            if node == ROOT:
                continue
            chance = float(tree.estimates[node])
            if not translated:  # Otherwise the draft model has another id for the token.
                token = tree.tokens[node][None, None]
                before = self._logits[int(tree.parents[node])]
                chance = float(np.exp(before.log_probability(token))[0, 0])
            self._states[tuple(tree.tokens_to(node))] = rows.states[index], chance

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        if len(tree) == 0 or (self.rows and len(self.rows) >= MOST_NUMBERS // len(self.rows[0][0])):
            return
        path = tree.follow(verdict.tokens[:-1])
        alive = {ROOT, *path}
        known = features(tree).astype(np.float32)
        for node, parent in enumerate(tree.parents.tolist()):
            if parent not in alive:
                continue
            found = known[node], float(tree.estimates[node])
            if self.reads == HIDDEN:
                kept = self._states.get(tuple(tree.tokens_to(node)))
                if kept is None:  # The draft model has not read the last tokens of its draft.
                    continue
                found = kept
            self.rows.append((found[0], float(node in path), found[1], float(self.prompt)))


def record_head_samples(
    llm: LLM, items: Sequence[Item], spec: Spec, params: SamplingParams, progress: Progress
) -> HeadSamples:
    """Decode a workload with full drafts of ``spec``'s method, and record verdicts as samples."""
    decoder = drafting(spec)
    reads = HIDDEN if decoder.drafter.needs.levels else ESTIMATES
    names = {item.prompt: number for number, item in enumerate(items)}
    rows: list[tuple[Array, float, float, float]] = []

    def recorder(number: int) -> HeadRecorder:
        return HeadRecorder(draft_size(decoder), names[items[number].prompt], reads, rows)

    play(llm, items, spec, params, recorder, progress)
    inputs, *columns = zip(*rows, strict=True) if rows else ((),) * 4
    accepted, probability, prompt = (np.array(column, np.float32) for column in columns)
    return HeadSamples(reads, np.array(inputs, np.float32), accepted, probability, prompt)
