"""Hidden Transfer: states in the middle of the target, mapped to those of tokens further on."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from paradecode.core.head import Head
from paradecode.core.request import Forward
from paradecode.core.sequence import TokenSequence
from paradecode.methods.draft.loop import Scoring
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.prompt_rows import Counts, RowCost
from paradecode.methods.draft.row_drafter import RowDrafter
from paradecode.methods.draft.source import share_of
from paradecode.methods.draft.transfer_rows import TransferRows

SOURCE = "the target's transfer matrices"


@drafter(
    "hidden-transfer",
    paper="Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration",
    arxiv="2404.12022",
    training=SOURCE,
)
@dataclass
class HiddenTransfer(RowDrafter):
    """Trained matrices make pseudo states of later tokens, which pass the target's last layers.

    Wu et al. 2024. Where a node's state enters layer l, matrix k makes of it a row k places further
    on. It passes the layers from l on, sees the text, its node and the rows before its own, and
    guesses the token that follows it; nothing else sees it. The guesses behind the last accepted
    token make the next draft. The paper gives all nodes of a fixed tree as many rows; here nodes
    get rows where they pay, as in PPD, and the tree is made of the likeliest paths.

    When: there are such matrices for the target, and rows are cheap. A verification is run in two
    forwards, of the layers before l and of the others: no weight is read twice.
    """

    source = SOURCE
    kind = "hidden-transfer"
    _took: list[float] = field(default_factory=list, init=False, repr=False)

    def levels(self, head: Head) -> int:
        return len(head.transfers)

    def cost(self, seq: TokenSequence, head: Head) -> RowCost:
        facts = seq.about()
        passed = tuple(range(head.taps[0] + 1, facts.layers))
        return RowCost(share_of(facts, passed), head.pace.draft)

    def score(self, forward: Forward) -> Scoring:
        """As a whole one; what it takes more is measured, and the least of three in a row counts.

        So neither a request's first one does, which is slow, nor a stall of the machine.
        """
        seq, began = self._seq, perf_counter()
        reply = yield from super().score(forward)
        if seq is not None and self._rows is not None and not seq.neighbours:
            rows = int(self._rows.counts.sum())
            usual = seq.step_seconds(len(forward.tokens) + len(forward.tree) + rows) or 0.0
            if rows:
                self._took = [*self._took[-2:], max(perf_counter() - began - usual, 0.0)]
            if rows and len(self._took) == 3:
                self._head(seq).pace.book(min(self._took), 1)
        return reply

    def rows(self, seq: TokenSequence, head: Head, counts: Counts) -> TransferRows:
        # A prompt is run in pieces, and whole: in the middle of the layers no piece can stop.
        return TransferRows(counts * (len(seq.pending) == 1), head, seq.about().layers)
