"""TriForce: the target drafts for itself with few keys, and a small model guesses for that
draft."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, TARGET, Forward, Reply, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.two_levels import SHORT, TwoLevels, check, chosen, farthest
from paradecode.methods.parts import parameter


@drafter(
    "triforce",
    paper="TriForce: Lossless Acceleration of Long Sequence Generation",
    arxiv="2404.11912",
    url="https://github.com/Infini-AI-Lab/TriForce",
    names={"gamma": "num_speculative_tokens"},
)
@dataclass
class TriForce(ModelDrafter):
    """Three levels for long texts: a small model, the target with few keys, the target (Sun 2024).

    Where a text is long, its keys and values cost more than the weights. So the target drafts with
    its own weights, and sees only chunks of 8 keys that matter, and the latest keys. A small model,
    which sees the first 16 keys and the latest 240, is ``guesses`` tokens ahead of that; by default
    there is none, and two levels. Drafts are tokens of the middle level, whatever the small model
    guessed, so every verifier stays exact. In the published code the middle level draws from its
    whole row where it rejects a guess, which is biased.

    The paper chooses chunks for each layer and head, by the mean of their keys times the prompt's
    last query. Here all layers and heads see the same ones: those that got most of the last token's
    attention over all layers and heads, asked for anew every ``refresh`` tokens. Where that would
    be more than 256 MB of weights in a step of all requests, the keys chosen last stay.

    When: texts of many thousands of tokens, where verifying several rows costs little more than
    one. On two cores every row's attention costs its own time, so little is gained there.
    """

    keys: int = parameter(1024, 8, 1 << 20, "keys that the target drafts with")
    recent: int = parameter(256, 0, 1 << 20, "of these, the latest ones")
    guesses: int = parameter(0, 0, 16, "tokens that a draft model is ahead; the paper: 1")
    refresh: int = parameter(32, 1, 1 << 20, "tokens after which the keys are chosen anew")
    _asks: bool = field(default=False, init=False, repr=False)
    _due: int = field(default=0, init=False, repr=False)
    _early: NDArray[np.int32] | None = field(default=None, init=False, repr=False)
    _end: int = field(default=0, init=False, repr=False)
    _pace: float = field(default=1.0, init=False, repr=False)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        runs = (TARGET, DRAFT) if self.guesses else (TARGET,)
        return Needs(noise=True, draws=True, levels=True, runs=runs, rests=True)

    def check(self, seq: TokenSequence) -> None:
        check(seq.about(), seq.prompt_length, self.keys)
        if self.guesses and seq.about(DRAFT).vocabulary is not None:
            fix = "the small model needs the target's own tokens, or set guesses=0"
            raise InvalidInput("draft_model", "another vocabulary", fix)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        cached = len(seq.tokens) - len(seq.pending)
        if len(seq.pending) > min(limit, SHORT):
            return EMPTY  # A prompt.
        visible = None
        if cached > self.keys:
            few = cached <= farthest(seq.about(), seq.neighbours)
            self._asks = few and len(seq.tokens) >= self._due
            if self._early is None:
                return EMPTY
            visible = np.concatenate([self._early, np.arange(self._end, cached, dtype=np.int32)])
        rows = TwoLevels(seq, limit, self.guesses, visible, self.offer.noise, self._pace)
        calibration = seq.shared(f"triforce {self.keys}", Calibration)
        tree = yield from self.grow(seq, limit, rows, 1, calibration)
        self._pace = rows.pace
        return tree

    def score(self, forward: Forward) -> Generator[Forward, Reply, Reply]:
        rows = len(forward.tokens)
        if not self._asks or rows > SHORT:
            return (yield forward)
        self._asks = False
        reply = yield replace(forward, attention=np.array([rows - 1], np.int32))
        shares = np.sum([weights[0].sum(0) for weights in reply.attention.values()], axis=0)
        cached = len(shares) - rows - len(forward.tree)
        self._early, self._end = chosen(shares[:cached], self.keys, self.recent)
        self._due = cached + self.refresh
        return reply
