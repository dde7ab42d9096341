"""PPD and Hidden Transfer: extra rows of the target's own forward pass guess later tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from paradecode.core.decoder import Apply, Forward, Reply, TokenSequence
from paradecode.core.head import Array, Head
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.contracts import Scoring
from paradecode.methods.draft.head_drafter import head_method
from paradecode.methods.draft.row_drafter import Counts, GuessRows, PromptRows, RowCost, RowDrafter
from paradecode.methods.draft.source import NO_TOKENS, share_of


@head_method(
    "ppd",
    "the target's prompt tokens",
    paper="Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM "
    "Inference",
    arxiv="2405.18628",
    aliases=("parallel-prompt-decoding",),
)
class Ppd(RowDrafter):
    """Rows of trained embeddings in the target's own forward pass guess the tokens further on.

    Chen et al. 2024. Prompt row k after a token guesses the token k + 1 positions further on. The
    guesses after the last accepted token make the next draft. A node gets prompt rows by the
    paper's rule: the probability that a verification ends at the node, times the gain of one more
    level of guesses. Rates are counted while decoding, and the cost of rows is measured on this
    machine.

    When: there are such tokens for the target, a draft may cost no model, and rows are cheap.
    """

    def levels(self, head: Head) -> int:
        return 0 if head.prompts is None else len(head.prompts)

    def rows(self, seq: TokenSequence, head: Head, counts: Counts) -> PromptRows:
        assert head.prompts is not None
        return PromptRows(counts, head.prompts)


# Hidden Transfer maps hidden states in the middle of the target to states of later tokens. These
# become new rows, which enter the target at that layer.


@dataclass
class TransferRows(GuessRows):
    """Prompt rows that the head's matrices (``transfers``) make in the middle of a verification.

    The verification is cut into forward passes at the layers where such rows enter. The forwards
    before the last cut store no keys and values. The last forward goes on from there, and computes
    the same for the tree's own rows as an uncut forward. A row that has overflowed is set to 0,
    because NaN would spread to rows that do not attend to it.

    Args:
        total: number of layers of the target.
        head: head with the matrices.
    """

    head: Head
    total: int

    def run(self, forward: Forward, tree: TokenTree) -> Scoring:
        pending, numbers = len(forward.tokens), self.numbers
        last = np.full(len(tree), pending - 1, np.int32)
        rows = TokenTree.chain(forward.tokens).extend(tree, last)
        real = len(rows) - len(numbers)
        nodes = np.repeat(np.arange(len(self.counts)), self.counts) + pending - 1
        enters = np.array(self.head.taps)[numbers] + 1  # The layer that each row enters.
        given = np.zeros((len(numbers), self.head.width), np.float32)
        hidden: dict[int, Array] = {}
        begin = 0
        for end in np.unique(enters).tolist():
            inside = enters <= begin if begin else np.zeros(len(enters), bool)
            reply = yield Forward(
                NO_TOKENS,
                tree=_first(rows, real, inside),
                given=given[inside] if begin else None,
                layers=tuple(range(begin, end)),
                logits=NO_TOKENS,
                hidden=(end - 1, *(at for at in forward.hidden if begin <= at % self.total < end)),
            )
            hidden |= reply.hidden
            states = reply.hidden[end - 1]
            given[inside] = states[real:]
            for level in set(numbers[enters == end].tolist()):
                new = (enters == end) & (numbers == level)
                network = self.head.transfers[level]
                given[new] = _sound((yield Apply(network, {"state": states[nodes[new]]})))
            begin = end
        behind = tuple(at for at in forward.hidden if at % self.total >= begin)
        layers = tuple(range(begin, self.total))
        reply = yield replace(forward, tree=tree, given=given, layers=layers, hidden=behind)
        kept = {at: hidden[at] for at in forward.hidden if at not in behind}
        return Reply(reply.logits, {**reply.hidden, **kept})


def _sound(rows: Array) -> Array:
    """Return the rows, with every row of infinite or NaN norm set to 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.square(rows, dtype=np.float32).sum(axis=1, keepdims=True)
        return np.where(np.isfinite(sums), rows, 0.0)


def _first(rows: TokenTree, real: int, kept: np.ndarray) -> TokenTree:
    """Return the first ``real`` rows, and after them the rows that ``kept`` marks.

    No returned row may be a child of a dropped row.
    """
    places = np.cumsum(np.concatenate([np.ones(real, bool), kept])) - 1
    keep = np.concatenate([np.arange(real), real + np.flatnonzero(kept)])
    parents = rows.parents[keep]
    return TokenTree(
        rows.tokens[keep], np.where(parents == ROOT, ROOT, places[parents]).astype(np.int32)
    )


@head_method(
    "hidden-transfer",
    "the target's transfer matrices",
    paper="Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration",
    arxiv="2404.12022",
)
class HiddenTransfer(RowDrafter):
    """Trained matrices make pseudo states of later tokens, which pass the target's last layers.

    Wu et al. 2024. Where a node's hidden state enters layer l, matrix k computes from it a row for
    the token k positions further on. The row passes the layers from l on, attends to the text, its
    node and the rows before its own, and guesses the token that follows it. No other row attends to
    it.

    The guesses after the last accepted token make the next draft. The paper gives each node of a
    fixed tree the same number of rows. Here nodes get rows where the rows are worth their cost, as
    in PPD, and the tree is made of the most probable paths.

    When: there are such matrices for the target, and rows are cheap. A verification is run in two
    forward passes, of the layers before l and of the others: no weight is read twice.
    """

    _took: list[float] = field(default_factory=list, init=False, repr=False)

    def levels(self, head: Head) -> int:
        return len(head.transfers)

    def cost(self, seq: TokenSequence, head: Head) -> RowCost:
        facts = seq.about()
        passed = tuple(range(head.taps[0] + 1, facts.layers))
        return RowCost(share_of(facts, passed), head.pace.draft)

    def score(self, forward: Forward) -> Scoring:
        """Run the verification and measure how much longer it takes than an uncut one.

        The shortest of the last three times counts. This ignores a request's first verification,
        which is slow, and a stall of the machine.
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
        # No rows for a prompt, because its chunks cannot stop in the middle of the layers.
        return TransferRows(counts * (len(seq.pending) == 1), head, seq.about().layers)
