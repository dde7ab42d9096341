"""Forward the canvases that are likely to come next together with the present one.

Longer than other policies: the paper is about the loop, which drafts canvases and verifies them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paradecode.core.decoder import Guarantee, Steps
from paradecode.core.logits import Logits
from paradecode.core.request import Apply
from paradecode.core.sequence import Sequence
from paradecode.methods.canvas.branches import MOST_ROWS, instead, run_branches
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.loop import Unmask, apply, decided
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.canvas.view import Decision, Positions, View, Window
from paradecode.methods.parameters import choice, parameter

MOST_DRAFTED = 4
"""Canvases of a forward, unless the request says how many."""
LEARNING = 0.1
"""Weight of the last draft in the share of those that come true."""
PATIENCE = 32
"""After so many forwards without a draft one is tried."""


@dataclass
class DraftOdds:
    """What a tenant's requests have learned: how often drafts come true, and how long none was."""

    right: float = 0.9
    single: int = 0


@dataclass(frozen=True, eq=False)
class Foreseen:
    """A canvas that a forward computed: ``logits`` [K, V] about ``positions`` [K]."""

    canvas: Canvas
    positions: Positions
    logits: Logits
    refresh: bool

    def answers(self, canvas: Canvas, window: Window) -> bool:
        """Whether this is what a forward of ``canvas`` for ``window`` would compute."""
        wanted = window.start + np.flatnonzero(canvas.masked[window.start : window.end])
        return (
            np.array_equal(self.canvas.tokens, canvas.tokens)
            and np.array_equal(self.canvas.masked, canvas.masked)
            and bool(np.isin(wanted, self.positions).all())
        )


@dataclass
class DraftAndVerify(Unmask):
    """The loop, but a forward is only run for a canvas that none of the last ones has foreseen.

    Every decision is made from the model's predictions for the very canvas that it changes, in
    order, so that the text is that of the plain loop, whatever is drafted.
    """

    policy: FreeDave
    _odds: DraftOdds = field(init=False, repr=False)
    _rows: int = field(default=0, init=False)

    def decode(self, seq: Sequence) -> Steps:
        canvas = self.begin(seq)
        self._odds = seq.shared("freedave", DraftOdds)
        drafts: list[Foreseen] = []
        view: View | None = None
        while not seq.finished:
            window = self.blocks.window(canvas)
            seen = next((draft for draft in drafts if draft.answers(canvas, window)), None)
            if len(drafts) > 1:
                self._odds.right += LEARNING * ((seen is not None) - self._odds.right)
            if seen is None:
                drafts = yield from self._compute(window, view)
                seen = drafts[0]
            view = self.narrow(self.read(window, seen.refresh, seen.positions, seen.logits))
            decision = yield from decided(self.policy, view)
            self.commit(view, shortened(view, decision, drafts))

    def _compute(self, window: Window, last: View | None) -> Any:
        """Run the forward of the canvas, and of those that are expected to follow it."""
        canvas, steps = self.canvas, self.policy.draft_steps or MOST_DRAFTED
        ahead = 0
        if self.policy.drafts_ahead(canvas):
            ahead = -(-steps // self.blocks.block_length) * self.blocks.block_length
        count = self._paying(self._rows or window.end - window.start, ahead, steps)
        if count == 1 and not self.policy.draft_steps:
            ahead = 0
        window = replace(window, end=min(window.end + ahead, canvas.end))
        plan = self.cache.plan(canvas, window)
        planned = int(plan.rows.sum())
        self._rows = max(1, planned - ahead)
        count = max(1, min(count, MOST_ROWS // planned))
        guesses = (yield from self._guesses(last, count - 1)) if last and count > 1 else []
        forward, positions = self.ask(window, plan)
        canvases, asked, forwards = [canvas.copy()], [positions], [forward]
        for guess in guesses:
            rows = np.flatnonzero(guess.masked[positions] | (self.policy.observes != "masked"))
            if len(rows):
                canvases.append(guess)
                asked.append(positions[rows])
                forwards.append(instead(forward, guess, rows))
        logits = yield from run_branches(forwards, self.policy.mode == "tree")
        self.store(plan)
        return [Foreseen(*each, plan.refresh) for each in zip(canvases, asked, logits, strict=True)]

    def _paying(self, rows: int, ahead: int, most: int) -> int:
        """How many canvases to compute, with the next one: those that make steps the fastest."""
        if self.policy.draft_steps or self.seq.step_seconds(rows) is None:
            return most
        expected, best, rate = 0.0, 1, 0.0
        for count in range(1, most + 1):
            expected += self._odds.right ** (count - 1)
            whole = rows if count == 1 else count * (rows + ahead)
            seconds = self.seq.step_seconds(whole) or math.inf
            if expected / seconds > rate:
                best, rate = count, expected / seconds
        self._odds.single = 0 if best > 1 else self._odds.single + 1
        return 2 if self._odds.single % PATIENCE == PATIENCE - 1 else best

    def _guesses(self, last: View, count: int) -> Generator[Apply, Any, list[Canvas]]:
        """The next canvases, if the predictions of the last view still held."""
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
    """FreeDave++: of a decision of many positions, the largest part that was foreseen.

    The rest is decided from the predictions for that canvas, without a forward.
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
    """Lossless is the draft of `static`, one token a step."""
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
@dataclass
class FreeDave(Wrapper):
    """Compute the canvases that are expected next along with this one; text of static, unchanged.

    What the last predictions would have the policy underneath do, step by step, is the draft. As
    long as it comes true, no further forward is needed. With ``base=threshold`` this is
    FreeDave++, which is not lossless. A cache sees fewer forwards than without drafts, so that
    with one that goes stale the text differs, too.

    Without ``draft_steps`` as many are drafted as make steps the fastest, by the measured cost of
    rows and by how often drafts came true: often none, where rows cost as much as forwards.

    When: the text of one token a forward must stay as it is, and rows are cheap: it saves forwards,
    not rows.
    """

    draft_steps: int = parameter(
        0, 0, 64, "canvases in a forward, at least 1; 0: at most 4, if rows are cheap enough here"
    )
    mode: str = choice("tree", ("tree", "batch"), "one forward, or a batch of them")
    eager: str = choice("auto", ("auto", "on", "off"), "draft the next blocks; auto: if causal")

    def drafts_ahead(self, canvas: Canvas) -> bool:
        """Whether the blocks behind the present one are computed and drafted, too."""
        return self.eager == "on" or (self.eager == "auto" and canvas.block > 0)
