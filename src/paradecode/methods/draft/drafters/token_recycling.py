"""Token recycling: the most probable tokens of every verified row make the next draft.

A table stores the tokens that are most likely to follow each token.
"""

from __future__ import annotations

import numpy as np

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.acceptance import kind_of
from paradecode.methods.draft.growth import Candidate, Path, accepted_last, grow, guess, log_softmax
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.parts import parameter

PAGE_BYTES = 4096


class RecyclingTable:
    """Stores the k most probable next tokens of each token, with log-probabilities among these k.

    The arrays begin as untouched zeros, so memory grows with the number of tokens that occurred.

    Attributes:
        seen: bool [vocabulary], True for tokens that have successors.
        ids: int32 [vocabulary, k]; scores: float32 [vocabulary, k].
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        self.seen = np.zeros(vocabulary, bool)
        self.ids = np.zeros((vocabulary, k), np.int32)
        self.scores = np.zeros((vocabulary, k), np.float32)

    @property
    def nbytes(self) -> int:
        """The most bytes of memory that the arrays can use now."""
        whole = self.ids.nbytes + self.scores.nbytes
        return self.seen.nbytes + min(whole, 2 * PAGE_BYTES * int(self.seen.sum()))


@drafter(
    "token-recycling",
    paper="Turning Trash into Treasure: Accelerating Inference of LLMs with Token Recycling",
    arxiv="2408.08696",
    aliases=("recycling", "tr"),
    names={"matrix_top_k": "k", "output_id_topk": "k"},
)
class TokenRecycling(ModelFree):
    """Unroll a table of each token's likely successors, updated by every verified row (Luo 2024).

    All rows update the table, also rejected ones: the model's prediction after a token says what
    may follow that token. If several rows of a forward pass have the same token, the last accepted
    row is stored. The table is shared by the tenant's requests. The tree grows best first by
    acceptance rates of this request (the paper has one fixed tree of 80 nodes, too wide for a CPU).

    When: text that follows habits rather than copies, where rows are cheap; or fused,
    ``prompt-lookup+token-recycling``, for where nothing is found to copy.
    """

    needs = Needs(all_rows=True, noise=True)
    group = "token-recycling"

    k: int = parameter(8, 1, 32, "number of next tokens that are stored for each token")
    depth: int = parameter(6, 1, 32, "most draft tokens on a path")

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        table, last = self._table(seq), int(seq.tokens[-1])

        def candidates(path: Path) -> list[Candidate]:
            token = path[-1] if path else last
            if not table.seen[token]:
                return []
            known = table.ids[token], table.scores[token]
            ids, chances = guess(seq, len(path), *known, self.offer.noise)
            return list(zip(ids, map(kind_of, chances), strict=True))

        grow(draft, limit, self.depth, candidates)

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        table, rows = self._table(seq), accepted_last(verdict, len(tree) + 1)
        tokens = np.concatenate([seq.tokens[-1:], tree.tokens])[rows]
        ids, logits = reply.logits.top_k(self.k)
        width = ids.shape[1]  # Less than k if the vocabulary is smaller.
        table.seen[tokens] = True
        table.ids[tokens, :width] = ids[rows]
        table.scores[tokens, :width] = log_softmax(logits)[rows]

    def _table(self, seq: TokenSequence) -> RecyclingTable:
        vocabulary = seq.about().vocab_size
        k = min(self.k, vocabulary)
        return seq.shared(f"token-recycling {k}", lambda: RecyclingTable(vocabulary, k))
