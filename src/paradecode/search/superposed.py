"""Superposed Decoding: several drafts with one row in each forward, which reads a mixture of
them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.ngram_table import load_ngrams
from paradecode.methods.parts import declare, local_path, parameter
from paradecode.search.branch import (
    Asked,
    Branch,
    Grow,
    Rate,
    Searched,
    SearchTask,
    Start,
    in_order,
)
from paradecode.search.superposition import Superposition


@declare("search", "superposed", guarantee="lossy", paper="Superposed Decoding", arxiv="2405.18400")
@dataclass
class Superposed:
    """Grows ``k`` drafts with one row a forward: the mean of their last tokens' embeddings.

    The row weighs the drafts by their probabilities. Its ``tokens`` best tokens, with probabilities
    at the temperature ``sharpness``, are the same for all drafts. Only an n-gram model of the
    prompt distinguishes them; its log-probabilities are mixed in with the weight ``alpha``. The
    authors count n-grams in a large corpus and use the weight 0.54. Those of a short prompt make
    drafts repeat it, so the default is 0. Of the ``2 k`` best continuations, those that end wait,
    and the ``k`` best others go on. The drafts whose tokens have the best mean are returned; a
    scorer may choose among them. Nothing is drawn. One draft with ``alpha=0`` is greedy decoding.
    More drafts are lossy, because a row represents none of them alone. The other defaults are the
    authors'.

    When: several short endings are wanted for the price of one, as for a line of a text.
    """

    k: int = parameter(3, 1, 16, "drafts")
    tokens: int = parameter(9, 1, 256, "tokens of a row that may follow")
    alpha: float = parameter(0.0, 0.0, 1.0, "weight of the n-grams")
    sharpness: float = parameter(0.06, 1e-3, 100.0, "temperature of the model's probabilities")
    table: str = local_path("n-grams beside the prompt's: a file, or the name of a model")

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
        params = task.params
        if params.penalised or params.min_tokens or params.logprobs is not None:
            fix = "it has no penalties, min_tokens and logprobs: leave them out"
            raise InvalidInput("search", "superposed", fix)
        table = load_ngrams(self.table) if self.table else None
        drafts = Superposition(task, self.k, self.tokens, self.alpha, self.sharpness, table)
        # The sequence itself holds stand-ins for mixtures: no token and no text may end it.
        mine = replace(params, stop=(), stop_token_ids=(), ignore_eos=True)
        start = Start(0, decoder=drafts, params=mine, width=self.k)
        grown: list[Branch] = yield Grow([start])
        (root,) = grown
        found = [(draft, "stop") for draft in drafts.ended]
        found += [(draft, root.reason or "cancelled") for draft in drafts.alive]
        found = sorted(found, key=lambda each: -each[0].score)[: self.k]
        branches = [
            Branch(
                start, root.sequence, draft.tokens, len(draft.tokens), drafts.text(draft), reason,
                reason in ("stop", "length"), draft.total,
            )
            for draft, reason in found
        ]  # fmt: skip
        scores = [draft.score for draft, _ in found]
        if task.scorer:
            scores = yield Rate(branches)
        return in_order(branches, scores, sum(branch.new for branch in branches))
