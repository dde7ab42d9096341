"""Computes the canvases that are likely to come next together with the present one.

This file is longer than other policies, because the paper is about the loop, which drafts canvases
and verifies them.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paradecode.core.decoder import Apply, Guarantee, Steps, TokenSequence
from paradecode.core.logits import Logits
from paradecode.methods.canvas.canvas import Canvas, Decision, Positions, View, Window
from paradecode.methods.canvas.forwards import MOST_ROWS, instead, run_branches
from paradecode.methods.canvas.loop import Unmask, apply, decided, policy
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.parts import choice, parameter

MOST_DRAFTED = 4
"""The number of canvases in one forward pass, unless the request sets a number.

More canvases mean fewer forwards, each with more rows.
"""
LEARNING = 0.1
"""The weight of the newest draft in the running average of how often drafts are right."""
PATIENCE, MOST_PATIENCE = 32, 1024
"""The number of forward passes without a draft after which the loop tries a draft again.

The number doubles with each failed trial, from the first value up to the second.
"""


@dataclass
class DraftOdds:
    """Measurements of a tenant's requests, by which the loop decides whether drafts save time.

    Attributes:
        right: how often drafts are right, as a running average.
        seconds: seconds to make one draft, as a running average.
        single: number of forward passes since the last draft.
        patience: number of forwards without a draft after which the next one is tried.
    """

    right: float = 0.9
    seconds: float = 0.0
    single: int = 0
    patience: int = PATIENCE


@dataclass(frozen=True, eq=False)
class Foreseen:
    """A canvas that was computed ahead; ``logits`` [K, V] predict ``positions`` [K]."""

    canvas: Canvas
    positions: Positions
    logits: Logits
    refresh: bool

    def answers(self, canvas: Canvas, window: Window) -> bool:
        """Return whether a forward of ``canvas`` for ``window`` would compute the same logits."""
        wanted = window.start + np.flatnonzero(canvas.masked[window.start : window.end])
        return (
            np.array_equal(self.canvas.tokens, canvas.tokens)
            and np.array_equal(self.canvas.masked, canvas.masked)
            and bool(np.isin(wanted, self.positions).all())
        )


@dataclass
class DraftAndVerify(Unmask):
    """The loop that runs a forward only for a canvas that no recent forward has computed ahead.

    Every decision comes from the model's predictions for exactly the canvas that the decision
    changes, and decisions are made in order. The text is therefore the same as from the plain loop,
    whatever is drafted. It depends on the drafts only where a decision is shortened to a drafted
    canvas, or where the cache goes stale.
    """

    policy: FreeDave
    _odds: DraftOdds = field(init=False, repr=False)
    _rows: int = field(default=0, init=False)
    _best: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def decode(self, seq: TokenSequence) -> Steps:
        canvas = self.begin(seq)
        self._odds = seq.shared("freedave", DraftOdds)
        drafts: list[Foreseen] = []
        view: View | None = None
        while not seq.finished:
            window = self.blocks.window(canvas)
            seen = next((draft for draft in drafts if draft.answers(canvas, window)), None)
            if len(drafts) > 1:
                self._odds.right += LEARNING * ((seen is not None) - self._odds.right)
            if seen is None and (count := self._paying(window)) > 1:
                drafts = yield from self._compute(window, view, count)
                seen = drafts[0]
            if seen is not None:
                view = self.read(window, seen.refresh, seen.positions, seen.logits)
            else:
                drafts, plan = [], self.cache.plan(canvas, window)
                self._rows = int(plan.rows.sum())
                view = yield from self.look(window, plan)
            view = self.narrow(view)
            decision = yield from decided(self.policy, view)
            self.commit(view, shortened(view, decision, drafts))

    def _compute(self, window: Window, last: View | None, count: int) -> Any:
        """Run the forward pass of the canvas and of up to ``count - 1`` drafted canvases."""
        canvas = self.canvas
        window = replace(window, end=min(window.end + self._ahead, canvas.end))
        plan = self.cache.plan(canvas, window)
        planned = int(plan.rows.sum())
        self._rows = max(1, planned - self._ahead)
        count = max(1, min(count, MOST_ROWS // planned))
        started = time.perf_counter()
        guesses = (yield from self._guesses(last, count - 1)) if last and count > 1 else []
        forward, positions = self.ask(window, plan)
        canvases, asked, forwards = [canvas.copy()], [positions], [forward]
        for guess in guesses:
            rows = np.flatnonzero(guess.masked[positions] | (self.policy.observes != "masked"))
            if len(rows):
                canvases.append(guess)
                asked.append(positions[rows])
                forwards.append(instead(forward, guess, rows))
        self._odds.single = 0
        self._best.clear()
        if guesses:
            own = (time.perf_counter() - started) / len(guesses)
            weight = LEARNING if self._odds.seconds else 1.0
            self._odds.seconds += weight * (own - self._odds.seconds)
        logits = yield from run_branches(forwards, self.policy.mode == "tree")
        self.store(plan)
        return [Foreseen(*each, plan.refresh) for each in zip(canvases, asked, logits, strict=True)]

    @property
    def _most(self) -> int:
        return self.policy.draft_steps or MOST_DRAFTED

    @property
    def _free(self) -> bool:
        """True if the text does not depend on the number of drafted canvases."""
        settings = {"base": self.policy.base, "steps": self.steps}
        return guarantee(settings) == "exact" and not self.cache.stale(self.canvas)

    @property
    def _ahead(self) -> int:
        """The number of positions after the window that are computed when canvases are drafted."""
        if not self.policy.drafts_ahead(self.canvas):
            return 0
        return -(-self._most // self.blocks.block_length) * self.blocks.block_length

    def _paying(self, window: Window) -> int:
        """Return the fastest number of canvases for the next forward, the present one included."""
        if self.policy.draft_steps or not self._free:
            return self._most
        rows = self._rows or window.end - window.start
        self._odds.single += 1
        if rows not in self._best:  # It stays the same until the next draft.
            self._best[rows] = self._fastest(rows)
        if self._best[rows] > 1:
            self._odds.patience = PATIENCE
        elif self._odds.single >= self._odds.patience:
            self._odds.patience = min(2 * self._odds.patience, MOST_PATIENCE)
            return 2
        return self._best[rows]

    def _fastest(self, rows: int) -> int:
        expected, best, rate = 0.0, 1, 0.0
        for count in range(1, MOST_DRAFTED + 1):
            expected += self._odds.right ** (count - 1)
            forward = self.seq.step_seconds(rows if count == 1 else count * (rows + self._ahead))
            if forward is None:
                return MOST_DRAFTED
            seconds = forward + (count - 1) * self._odds.seconds
            if expected / seconds > rate:
                best, rate = count, expected / seconds
        return best

    def _guesses(self, last: View, count: int) -> Generator[Apply, Any, list[Canvas]]:
        """Return the canvases that follow if the predictions of the last view still hold."""
        canvas, blocks, commits = deepcopy((self.canvas, self.blocks, self.policy))
        found: list[Canvas] = []
        while len(found) < count and last.positions[-1] < canvas.end > canvas.edge:
            stale = replace(last, canvas=canvas).within(blocks.window(canvas))
            if not stale.eligible.any():
                break
            stale = stale.within(blocks.narrow(stale))
            decision = replace((yield from decided(commits, stale)), truncate=None)
            apply(canvas, stale, decision)
            blocks.after(stale, decision)
            found.append(canvas.copy())
        return found


def shortened(view: View, decision: Decision, drafts: list[Foreseen]) -> Decision:
    """Return the largest part of a decision that leads to a drafted canvas (FreeDave++).

    The rest is decided from the predictions for the drafted canvas, without another forward pass.
    """
    if len(decision.commit) < 2 or len(decision.revoke) or decision.truncate is not None:
        return decision
    now, after = view.canvas, view.canvas.copy()
    apply(after, view, decision)
    for draft in reversed(drafts):
        known, new = ~draft.canvas.masked, now.masked & ~draft.canvas.masked
        if (
            new.any()
            and not (known & after.masked).any()
            and not (~known & ~now.masked).any()
            and (draft.canvas.tokens == after.tokens)[known].all()
        ):
            commit = np.flatnonzero(new)
            return replace(decision, commit=commit, tokens=after.tokens[commit])
    return decision


def guarantee(settings: Mapping[str, Any]) -> Guarantee:
    """Return ``exact`` for the base `static` with one token per step, else ``lossy``."""
    usual = settings.get("base", "static") == "static" and settings.get("steps", 0) == 0
    return "exact" if usual else "lossy"


@policy(
    "freedave",
    paper="Free Draft-and-Verification: Toward Lossless Parallel Decoding for Diffusion Large "
    "Language Models",
    arxiv="2510.00294",
    aliases=("free-draft-and-verification",),
    guarantee="exact",
    under=guarantee,
    driver=DraftAndVerify,
)
class FreeDave(Wrapper):
    """Compute the canvases that are expected next along with this one; text of static, unchanged.

    The drafted canvases are the ones that the policy underneath would decide, step by step, if the
    last predictions still held. As long as the draft is right, no further forward pass is needed.
    With ``base=threshold`` this is FreeDave++, which is not lossless. With drafts a cache sees
    fewer forwards than without, so with a cache that goes stale the text differs, too.

    Without ``draft_steps`` the loop drafts the number of canvases that makes steps the fastest, by
    the measured cost of rows and by how often drafts were right. This number is often zero where
    rows cost as much as forwards. Where the number changes the text (another base, ``steps``, a
    stale cache) it is always 4, so that the same seed gives the same text.

    When: the text of one token per forward must stay as it is, and rows are cheap: it saves
    forwards, not rows.
    """

    draft_steps: int = parameter(
        0, 0, 64, "canvases in a forward; 0: the fastest number, or 4 if it changes the text"
    )
    mode: str = choice("tree", ("tree", "batch"), "run canvases in one forward, or in a batch")
    eager: str = choice("auto", ("auto", "on", "off"), "also draft next blocks; auto: if causal")

    def drafts_ahead(self, canvas: Canvas) -> bool:
        """Return whether the blocks after the present one are computed and drafted as well."""
        return self.eager == "on" or (self.eager == "auto" and canvas.block > 0)
