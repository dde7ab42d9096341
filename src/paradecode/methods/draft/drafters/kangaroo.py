"""Kangaroo and M2R2: the target's first layers draft until a guess is not sure.

Kangaroo has an adapter after these layers. M2R2 has a second stream that passes through them.
"""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np

from paradecode.core.decoder import TARGET, Reply, TokenSequence, Verdict
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.contracts import Proposal
from paradecode.methods.draft.head_drafter import HeadDrafter, head_method
from paradecode.methods.draft.source import Source
from paradecode.methods.parts import parameter


@head_method(
    "kangaroo",
    "a Kangaroo adapter of the target",
    paper="Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting",
    arxiv="2404.18911",
    names={"exit_threshold": "sure"},
)
class Kangaroo(HeadDrafter):
    """The target's first layers run on each draft token, and one layer of attention guesses on.

    Liu et al. 2024. The first exit is after the layers that the adapter's folder names. The second
    exit ends a draft at the first token that is not ``sure``. Verification goes on after the first
    exit, and the adapter stores its rows of accepted tokens, so nothing is computed twice. The
    paper drafts a chain (``width=1``). With more candidates, only the most probable one is
    extended.

    When: there is an adapter, and the first layers of the target are few of many.
    """

    needs = replace(HeadDrafter.needs, runs=(TARGET,))

    width: int = parameter(1, 1, 16, "candidates of each token; the most probable is drafted on")
    sure: float = parameter(0.6, 0.0, 1.0, "a token that is less probable ends the draft")
    # Tokens that the adapter read only while drafting; the first is the last committed token.
    _ahead: list[int] = field(default_factory=list, init=False, repr=False)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        head, budget = self._head(seq), self.offer.budget
        self._look(seq, head)
        first = tuple(range(head.taps[-1] + 1))
        source = Source(layers=first, logits=False, taps=head.taps)
        rows = source.rows(seq, min(limit, self.depth))
        if len(seq.pending) != 1 or not (self._rows or self._memory.length):
            return EMPTY  # The adapter has not read the text.
        self._calibration = seq.shared(f"head {self.head}", Calibration)
        leaves = np.array([ROOT], np.int32)
        for level in range(rows.depth):
            leaves = budget.expand(
                seq,
                self._tree,
                leaves,
                lambda count: rows.seconds(count) + head.pace.behind(self._late(seq)),
            )
            if len(leaves) == 0 or rows.room < 1:
                break
            self._exit = rows.exit
            seen = yield from rows.look(self._tree, leaves, self._own, True)
            self._ahead.append(int(seq.tokens[-1]) if level == 0 else self._own[int(leaves[0])])
            self._rows.append((seen.states, np.zeros(1, np.int64)))
            guesses = yield from self._guessed(seq, head, self.width, 1, level)
            tokens, raw = guesses.tokens[None], guesses.estimates[None]
            fresh = np.sort(self._grown(seq, budget, leaves, tokens, tokens, raw))[:1]
            # The surest guess is drafted on, if the budget wants it.
            goes_on = self._tree.tokens[fresh] == tokens[0, :1]
            leaves = fresh[goes_on & (raw[0, :1] >= self.sure)] if len(fresh) else fresh
        return self._tree.best(limit)

    def _take(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Store the hidden states that the adapter lacks, and drop its rows of rejected tokens."""
        true = [int(seq.tokens[-1]), *verdict.tokens[:-1]]
        same = [a == b for a, b in zip(self._ahead, true)]
        kept = same.index(False) if False in same else len(same)
        self._memory.length -= len(self._ahead) - kept
        self._start -= len(self._ahead) - kept
        super()._take(seq, tree, reply, verdict)
        if self._ahead:
            features, tokens = self._rows.pop()
            known = len(features) - len(true) + kept
            self._rows += [(features[known:], tokens[known:])] if known < len(features) else []
        self._ahead = []


@head_method(
    "m2r2",
    "an M2R2 stream of the target",
    paper="M2R2: Mixture of Multi-Rate Residuals for Efficient Transformer Inference",
    arxiv="2502.02040",
    names={"exit_threshold": "sure"},
)
class M2R2(Kangaroo):
    """A second stream passes the target's first layers with its own, and is ahead of it.

    Bhendawade et al. 2025. In each of these layers the stream has a query of its own, attends to
    the target's keys and values, and goes through the layer's MLP. A trained low-rank part is added
    to the query's projection and to the MLP. After these layers the stream's state takes the place
    of the target's last hidden state.

    A draft grows as ``kangaroo``'s does: the target's first layers run on each draft token, and the
    verification goes on after them. We know the paper's abstract only, and the rest is inferred.
    The paper's router that chooses an exit for each token is not implemented; a draft ends with a
    token that is not ``sure``.

    When: there is such a stream, and the layers that it passes are few of many.
    """
