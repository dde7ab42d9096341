"""A decoder that reads several drafts as one: its rows are mixtures of their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paradecode.core.decoder import Forward, Steps, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.engine.prompt import NOTHING
from paradecode.methods.draft.ngram_table import NgramTable
from paradecode.search.branch import SearchTask
from paradecode.search.ngram_model import NgramModel

UNKNOWN = 200.0
"""Nats that a draft loses where the n-gram model knows none of the tokens that may follow it."""


class Mixed(NamedTuple):
    """One of the drafts that are read as one row, with the sum of its tokens' values."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0

    @property
    def score(self) -> float:
        """The mean value of a token: minus the logarithm of the paper's perplexity."""
        return self.total / max(1, len(self.tokens))


class Superposition:
    """A decoder of one request. Its sequence holds the best draft's token of each step as a
    placeholder.

    Args:
        task: the request, whose stop tokens and texts end drafts.
        k: number of drafts.
        kept: number of best tokens of a row that may follow.
        alpha: weight of the n-gram model.
        sharpness: temperature of the model's probabilities.
        table: n-grams beside those of the prompt.

    Attributes:
        alive: drafts that go on, the best first.
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

    def __call__(self) -> Superposition:
        return self

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
                seq.fill([], NOTHING, [], end="length")
                return
            seq.commit(Verdict([self.alive[0].tokens[-1]], [0], reply.logits))
            if seq.finished:
                return
            weights = np.exp([draft.total - self.alive[0].total for draft in self.alive])
            last = seq.embed(np.array([draft.tokens[-1] for draft in self.alive]))
            row = (weights / weights.sum()) @ last.astype(np.float64)
            reply = yield Forward(seq.pending, embeddings=row[None].astype(np.float32))

    def text(self, draft: Mixed) -> str:
        """The text of a draft, without the stop text or token that ended it."""
        stopped = bool(draft.tokens) and draft.tokens[-1] in self._stops
        text = self._text_of(draft.tokens[:-1] if stopped else draft.tokens)
        ends = [at for stop in self._params.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))]

    def _extend(self, row: Logits, prompt: Sequence[int], ngrams: NgramModel) -> None:
        """Give every draft one more token, by the paper's mixture with the n-gram model."""
        row.argmax()  # Raises for a row that is no distribution.
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
        """Whether no draft that goes on can overtake the ``k`` best that have ended."""
        if not self.alive or len(self.ended) < self.k:
            return not self.alive
        last = sorted(draft.score for draft in self.ended)[-self.k]
        best = self.alive[0]
        return last >= best.total / (len(best.tokens) + room - 1)
