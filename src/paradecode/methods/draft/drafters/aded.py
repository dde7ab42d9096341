"""ADED: a tri-gram table stands in for the model, searched with a bandit rule."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.noise import Purpose, uniform
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.bandit_search import BanditSearch
from paradecode.methods.draft.growth import guess, log_softmax
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.ngram_table import MOST_RANKS, load_ngrams
from paradecode.methods.draft.trigrams import trigrams
from paradecode.methods.parts import local_path, parameter

MOST_PROMPT = 4096
"""Tokens of a prompt, the last ones, that are counted."""


@drafter(
    "aded",
    paper="Adaptive Draft-Verification for Efficient Large Language Model Decoding",
    arxiv="2407.12021",
    aliases=("adaptive-draft-verification",),
)
@dataclass
class Aded(ModelFree):
    """Search a tri-gram table for drafts, balancing likelihood and exploration (Liu 2024).

    The table is the tenant's. It starts with what ``table`` has counted in a corpus (a file of
    ``paradecode train ngram-table --alternatives 12``, or the name of a model whose table comes
    with the package) and with the prompt's own tri-grams, and moves towards the model's
    probabilities wherever a row on the accepted path showed them. The tree is that of a Monte-Carlo
    search: descend by Q + exploration * P * sqrt(N) / (1 + n), add one node, back its value up; the
    nodes visited most are the draft. Noise in P follows from the request's seed, so runs repeat.

    When: much traffic of one kind, so that the table has something to learn from. On mixed prompts
    copying gains more for less work.
    """

    needs = Needs(all_rows=True, noise=True)
    group = "aded"

    exploration: float = parameter(1.0, 0.0, 10.0, "weight of what was tried less often")
    simulations: int = parameter(24, 1, 256, "descents a draft")
    depth: int = parameter(6, 1, 32, "most draft tokens in a row")
    rate: float = parameter(0.3, 0.01, 1.0, "how fast the table moves towards the model")
    noise: float = parameter(0.05, 0.0, 1.0, "share of noise in what the search expects")
    table: str = local_path("counted in a corpus: `paradecode train ngram-table`")
    _counted: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.table:
            load_ngrams(self.table)  # Raises now, not when the first draft is made.

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        table = trigrams(seq, self.table)
        if not self._counted:
            table.count(seq.tokens[-MOST_PROMPT:].tolist())
            self._counted = True
        start = seq.tokens[-2:].tolist()

        def options(path: tuple[int, ...]) -> list[tuple[int, float]]:
            context = [*start, *path][-2:]
            known = table.of((context[0], context[1])) if len(context) == 2 else {}
            return self._expected(seq, len(path), known) if known else []

        search = BanditSearch(options, self.depth, self.exploration)
        for _ in range(max(self.simulations, limit)):
            search.descend()
        search.plant(draft, limit)

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        table = trigrams(seq, self.table)
        ids, logits = reply.logits.select(verdict.rows).top_k(MOST_RANKS)
        chances = np.exp(log_softmax(logits))
        context = [*seq.tokens[-2:].tolist(), *verdict.tokens[:-1]]
        for row in range(len(verdict.rows) if len(seq.tokens) > 1 else 0):
            seen = dict(zip(ids[row].tolist(), chances[row].tolist(), strict=True))
            table.move((context[row], context[row + 1]), seen, self.rate)

    def _expected(
        self, seq: TokenSequence, depth: int, known: dict[int, float]
    ) -> list[tuple[int, float]]:
        """What may come after ``depth`` draft tokens, and how likely the search takes it to be."""
        ids = np.fromiter(known.keys(), np.int32, len(known))
        chances = np.fromiter(known.values(), np.float64, len(known))
        if seq.sampler.warp.temperature > 0.0:
            order, weights = guess(seq, depth, ids, np.log(chances + 1e-9), self.offer.noise)
            return list(zip(order, weights, strict=True))
        if self.noise > 0.0:
            drawn = uniform(seq.sampler.noise_key(depth, Purpose.DRAFT), ids)
            chances = (1.0 - self.noise) * chances + self.noise * drawn / drawn.sum()
        return list(zip(ids.tolist(), chances.tolist(), strict=True))
