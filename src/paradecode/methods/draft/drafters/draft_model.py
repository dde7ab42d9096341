"""A second, smaller model drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paradecode.core.request import DRAFT, Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets import Budget, Fixed
from paradecode.methods.draft.budgets.calibration import Calibration
from paradecode.methods.draft.drafters.tree_draft import Source, TreeDraft
from paradecode.methods.draft.loop import Proposal
from paradecode.methods.draft.method import MAX_DRAFT, drafter
from paradecode.methods.registry import parameter

SOURCE = Source(DRAFT)


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
class DraftModel:
    """A small model drafts a tree (Leviathan et al. 2023; Chen et al. 2023, arXiv 2302.01318).

    With ``width`` 1 the draft is a chain. Its own K/V cache follows by itself: accepted rows stay,
    others are dropped, and what it has not seen comes with its next forward.

    When: the target is several times as large as the draft model, and what is written is new, so
    that there is nothing to copy.
    """

    runs: ClassVar[str] = DRAFT  # Its tentative rows: one drafter of a fusion at a time.
    width: int = parameter(3, 1, 16, "candidates of each node; 1 drafts a chain")
    budget: Budget = field(default_factory=lambda: Fixed(MAX_DRAFT), repr=False)
    shares_noise: bool = False
    reads_draws: bool = False
    _draft: TreeDraft = field(default_factory=TreeDraft, repr=False)

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        self._draft.calibration = seq.shared("draft-model", Calibration)
        self._draft.shares_noise, self._draft.reads_draws = self.shares_noise, self.reads_draws
        tree = yield from self._draft.propose(seq, limit, SOURCE, self.budget, self.width)
        return tree

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._draft.observe(verdict)
