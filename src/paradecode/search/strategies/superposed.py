"""Superposed Decoding: several drafts share one row of each forward, which reads their mixture."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from paradecode.core.decoder import Forward, Steps, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.engine.prompt import OneUse
from paradecode.methods.draft.ngram_table import NgramTable, load_ngrams
from paradecode.methods.parts import declare, local_path, parameter
from paradecode.search.branch import Branch, Grow, Rate, Search, Searched, SearchTask, Start

WEIGHTS = (0.01, 0.04, 0.15, 0.18, 0.12)
"""Weights of the predictions after the last 1 to 5 tokens.

They are Superposed Decoding's weights. The paper does not divide by their sum.
"""


class NgramModel:
    """An n-gram model: the shares of the tokens that followed each run of 1 to 5 tokens.

    Args:
        text: token ids in which n-grams are counted.
        table: a table for runs that are not in the text.
    """

    def __init__(self, text: Sequence[int], table: NgramTable | None = None) -> None:
        self._table = table
        self._after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for end in range(1, len(text)):
            for size in range(1, min(len(WEIGHTS), end) + 1):
                self._after[tuple(text[end - size : end])][text[end]] += 1

    def after(self, context: Sequence[int]) -> dict[int, float]:
        """Return token -> weighted sum of its shares after the last 1 to 5 tokens, if above 0."""
        mixed: dict[int, float] = defaultdict(float)
        for size, weight in enumerate(WEIGHTS[: len(context)], 1):
            run = tuple(context[-size:])
            counts = self._after.get(run)
            if counts is not None:
                seen = sum(counts.values())
                for token, times in counts.items():
                    mixed[token] += weight * times / seen
            elif self._table is not None and (found := self._table.after(run)) is not None:
                token, bucket = found
                mixed[token] += weight * self._table.priors[bucket]
        return {token: value for token, value in mixed.items() if value > 0}


# A decoder that reads several drafts as one: its rows are mixtures of the drafts' tokens.

UNKNOWN = 200.0
"""Nats that a draft loses if the n-gram model knows none of its candidate next tokens."""


class Mixed(NamedTuple):
    """One of the drafts that are read as one row, with the sum of its tokens' values in nats."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0

    @property
    def score(self) -> float:
        """The mean value of a token, which is minus the logarithm of the paper's perplexity."""
        return self.total / max(1, len(self.tokens))


class Superposition(OneUse):
    """A decoder of one request that reads several drafts as one row, a mixture of their tokens.

    In each step its sequence gets the best draft's token as a placeholder.

    Args:
        task: the task of the request, whose stop tokens and stop texts end drafts.
        k: number of drafts.
        kept: number of a row's most probable tokens that may follow.
        alpha: weight of the n-gram model.
        sharpness: temperature of the model's probabilities.
        table: table of n-grams besides the prompt's n-grams, or None.

    Attributes:
        alive: drafts that have not ended, the best first.
        ended: drafts that have ended.
    """

    def __init__(
        self, task: SearchTask, k: int, kept: int, alpha: float, sharpness: float,
        table: NgramTable | None,
    ) -> None:  # fmt: skip
        self.k, self._kept, self._alpha, self._sharpness = k, kept, alpha, sharpness
        self._text_of, self._params, self._table = task.text_of, task.params, table
        self.alive, self.ended = [Mixed()], list[Mixed]()
        self._stops: set[int] = set()

    def decode(self, seq: TokenSequence) -> Steps:
        facts, params = seq.about(), self._params
        if not facts.writes or seq.constraint is not None:
            fix = "it needs an autoregressive model, and no constraint"
            raise InvalidInput("search", "superposed", fix)
        prompt = seq.tokens.tolist()
        ngrams = NgramModel(prompt, self._table)
        eos = () if params.ignore_eos else facts.eos_tokens
        self._stops = {*eos, *params.stop_token_ids}
        reply = yield Forward(seq.pending)
        while True:
            self._extend(seq.sampler.processed(reply.logits, 0, ()), prompt, ngrams)
            if self._settled(seq.room):
                self.end(seq)
                return
            seq.commit(Verdict([self.alive[0].tokens[-1]], [0], reply.logits))
            if seq.finished:
                return
            weights = np.exp([draft.total - self.alive[0].total for draft in self.alive])
            last = seq.embed(np.array([draft.tokens[-1] for draft in self.alive]))
            row = (weights / weights.sum()) @ last.astype(np.float64)
            reply = yield Forward(seq.pending, embeddings=row[None].astype(np.float32))

    def text(self, draft: Mixed) -> str:
        """Return the text of a draft, without the stop text or stop token that ended it."""
        stopped = bool(draft.tokens) and draft.tokens[-1] in self._stops
        text = self._text_of(draft.tokens[:-1] if stopped else draft.tokens)
        ends = [at for stop in self._params.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))]

    def _extend(self, row: Logits, prompt: Sequence[int], ngrams: NgramModel) -> None:
        """Extend every draft by one token, by the paper's mixture with the n-gram model."""
        row.argmax()  # Raises if the row is no distribution.
        ids, values = row.top_k(self._kept)
        likely = np.isfinite(values[0])
        scaled = values[0][likely].astype(np.float64) / self._sharpness
        logs = (1 - self._alpha) * (scaled - np.logaddexp.reduce(scaled))
        kept = dict(zip(ids[0][likely].tolist(), logs.tolist()))
        options: list[Mixed] = []
        for draft in self.alive:
            after = (
                ngrams.after([*prompt, *draft.tokens]) if self._alpha else dict.fromkeys(kept, 1.0)
            )
            known = {
                token: self._alpha * math.log(after[token]) for token in kept if token in after
            }
            for token, more in (known or dict.fromkeys(kept, -UNKNOWN)).items():
                options.append(Mixed((*draft.tokens, token), draft.total + kept[token] + more))
        options = sorted(options, key=lambda draft: -draft.total)[: 2 * self.k]
        going = [draft for draft in options if not self._ends(draft)]
        self.ended += [draft for draft in options if draft not in going]
        self.alive = going[: self.k]

    def _ends(self, draft: Mixed) -> bool:
        if draft.tokens[-1] in self._stops:
            return True
        text = self._text_of(draft.tokens) if self._params.stop else ""
        return any(stop in text for stop in self._params.stop)

    def _settled(self, room: int) -> bool:
        """Return whether no unfinished draft can overtake the ``k`` best drafts that have ended."""
        if not self.alive or len(self.ended) < self.k:
            return not self.alive
        last = sorted(draft.score for draft in self.ended)[-self.k]
        best = self.alive[0]
        return last >= best.total / (len(best.tokens) + room - 1)


@declare("search", "superposed", guarantee="lossy", paper="Superposed Decoding", arxiv="2405.18400")
class Superposed:
    """Grows ``k`` drafts with one row per forward pass: the mean of their last tokens' embeddings.

    The mean weighs the drafts by their probabilities. The row's ``tokens`` most probable tokens are
    the candidates for all drafts, with probabilities at the temperature ``sharpness``. Only an
    n-gram model of the prompt distinguishes the drafts; its log-probabilities are mixed in with the
    weight ``alpha``. The authors count n-grams in a large corpus and use the weight 0.54. The
    n-grams of a short prompt make drafts repeat it, so the default is 0.

    Among the ``2 k`` best continuations, the ones that end wait, and the ``k`` best others
    continue. The drafts whose tokens have the best mean are returned, and a scorer may choose among
    them. Nothing is sampled. One draft with ``alpha=0`` is greedy decoding. More drafts are lossy,
    because a row represents none of them alone. The other defaults are the authors'.

    When: several short endings are wanted for the price of one, as for a line of a text.
    """

    k: int = parameter(3, 1, 16, "drafts")
    tokens: int = parameter(9, 1, 256, "tokens of a row that may follow")
    alpha: float = parameter(0.0, 0.0, 1.0, "weight of the n-grams")
    sharpness: float = parameter(0.06, 1e-3, 100.0, "temperature of the model's probabilities")
    table: str = local_path("n-grams beside the prompt's: a file, or the name of a model")

    def search(self, task: SearchTask) -> Search:
        params = task.params
        if params.penalised or params.min_tokens or params.logprobs is not None:
            fix = "it has no penalties, min_tokens and logprobs: leave them out"
            raise InvalidInput("search", "superposed", fix)
        table = load_ngrams(self.table) if self.table else None
        drafts = Superposition(task, self.k, self.tokens, self.alpha, self.sharpness, table)
        # The sequence holds placeholders for mixtures, so no token and no text may end it.
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
        return Searched.in_order(branches, scores, sum(branch.new for branch in branches))
