"""Token recycling: the runners-up of every verified row are the next draft."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.growth import (
    Candidate,
    Trie,
    accepted_last,
    confidence,
    grow,
    guess,
    log_softmax,
)
from paradecode.methods.draft.loop import Drafter, Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.odds import Odds
from paradecode.methods.parameters import parameter

PRIOR = (0.02, 0.035, 0.045, 0.07, 0.12, 0.19, 0.28, 0.33, 0.35, 0.4, 0.52)
"""Chance that a successor is right, by how probable it was after its token (measured, 135M)."""


class Successors:
    """The k tokens most likely to follow each token, and their log-probabilities among the k.

    Zeros are not touched before they are written, so memory grows with the tokens that were seen.
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        self.seen = np.zeros(vocabulary, bool)
        self.ids = np.zeros((vocabulary, k), np.int32)
        self.scores = np.zeros((vocabulary, k), np.float32)


@drafter(
    "token-recycling",
    paper="Turning Trash into Treasure: Accelerating Inference of LLMs with Token Recycling",
    arxiv="2408.08696",
    aliases=("recycling", "tr"),
    names={"matrix_top_k": "k", "output_id_topk": "k"},
)
@dataclass
class TokenRecycling(Drafter):
    """Unroll a table of each token's likely successors, kept up by every verified row (Luo 2024).

    All rows teach, rejected ones too: what the model thought of a token says what may follow it.
    Where several rows of a forward have one token, the last accepted one is kept. The table is the
    tenant's; its tree grows best first by acceptance rates of this request (the paper has one fixed
    tree of 80 nodes, too wide for a CPU).

    When: text that follows habits rather than copies, where rows are cheap; or fused,
    ``prompt-lookup+token-recycling``, for where nothing is found to copy.
    """

    needs = Needs(all_rows=True, noise=True)

    k: int = parameter(8, 1, 32, "successors kept for each token")
    depth: int = parameter(6, 1, 32, "most draft tokens in a row")
    _odds: Odds = field(default_factory=lambda: Odds(PRIOR), repr=False)
    _draft: Trie = field(default_factory=Trie, repr=False)

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        table, last = self._table(seq), int(seq.tokens[-1])

        def candidates(path: tuple[int, ...]) -> list[Candidate]:
            token = path[-1] if path else last
            if not table.seen[token]:
                return []
            ids, chances = guess(
                seq, len(path), table.ids[token], table.scores[token], self.offer.noise
            )
            kinds = [confidence(chance) for chance in chances]
            return [(t, self._odds.of(kind), kind) for t, kind in zip(ids, kinds, strict=True)]

        self._draft = grow(limit, self.depth, candidates)
        return self._draft.tree() if len(self._draft) else EMPTY
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._draft.book(self._odds, tree, verdict)
        self._draft = Trie()
        table, rows = self._table(seq), accepted_last(verdict, len(tree) + 1)
        tokens = np.concatenate([seq.tokens[-1:], tree.tokens])[rows]
        ids, logits = reply.logits.top_k(self.k)
        width = ids.shape[1]  # Of a vocabulary smaller than k.
        table.seen[tokens] = True
        table.ids[tokens, :width] = ids[rows]
        table.scores[tokens, :width] = log_softmax(logits)[rows]

    def _table(self, seq: Sequence) -> Successors:
        vocabulary = seq.about().vocab_size
        k = min(self.k, vocabulary)
        return seq.shared(f"token-recycling {k}", lambda: Successors(vocabulary, k))
