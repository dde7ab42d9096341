"""The loop of every canvas method: plan a forward, run it, decide, and show the finished text."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from paradecode.core.decoder import (
    Apply,
    Decoder,
    Forward,
    Guarantee,
    Steps,
    TokenSequence,
    weakest,
)
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.trace import CanvasStep, TokenLogprob, token_logprobs
from paradecode.methods.canvas.block_rules import Blocks
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan
from paradecode.methods.canvas.canvas import Canvas, Decision, Progress, View, Window, propose
from paradecode.methods.canvas.feasible import Marks, Positions, Rules
from paradecode.methods.canvas.forwards import forward_of
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.parts import (
    dataclass_transform,
    make,
    method,
    parameter,
    parameters_of,
    part,
    read,
)

PATIENCE = 16
"""The number of forward passes allowed for each canvas position, unless the loop allows more."""


@dataclass
class Unmask:
    """The loop of a commit policy with a block rule and a cache rule; each request has its own.

    Args:
        block_length: positions of a block, for block rules; 0 takes the model's block length, or
            32.
        steps: number of forward passes planned for the whole canvas; 0 plans one for each mask.

    Attributes:
        canvas: the request's canvas; it exists from :meth:`begin` on.
    """

    policy: Policy
    blocks: Blocks
    cache: CacheRule
    block_length: int = 0
    steps: int = 0
    canvas: Canvas = field(init=False, repr=False)

    @property
    def patience(self) -> int:
        """The number of forward passes that are allowed for each canvas position.

        A request that needs more forwards fails, because its policy probably never ends.
        """
        return PATIENCE

    def decode(self, seq: TokenSequence) -> Steps:
        self.begin(seq)
        while not seq.finished:
            view = yield from self.look(*self.plan())
            view = self.narrow(view)
            self.commit(view, (yield from decided(self.policy, view)))

    def begin(self, seq: TokenSequence) -> Canvas:
        """Make the request's canvas, and start block rule, cache rule and policy with it."""
        self.seq, self.canvas = seq, Canvas.of(seq)
        self.blocks.start(self.canvas, self.block_length or seq.about().block_length or 32)
        self.cache.start(self.canvas)
        self.policy.start(self.canvas)
        rules = self.canvas.rules
        if rules is not None and not rules.fits(self.canvas.tokens, self.canvas.masked):
            raise InvalidInput("constraint", "this one", "it has no text with the tokens placed so")
        self._pace = Pace(self.canvas, self.steps)
        self._shown = ShownText(seq, self.canvas, self.policy.revises, self.patience)
        return self.canvas

    def plan(self) -> tuple[Window, RowPlan]:
        """Return the window whose masks may be decided next, and the plan of the forward for it."""
        window = self.blocks.window(self.canvas)
        return window, self.cache.plan(self.canvas, window)

    def look(self, window: Window, plan: RowPlan) -> Generator[Forward, Any, View]:
        """Run a planned forward pass, and return a view of the model's predictions."""
        forward, positions = self.ask(window, plan)
        reply = yield from plan.run(forward)
        self.store(plan)
        return self.read(window, plan.refresh, positions, reply.logits)

    def ask(self, window: Window, plan: RowPlan) -> tuple[Forward, Positions]:
        """Return the forward pass of a plan, and the positions [K] that its logits predict."""
        positions = np.flatnonzero(_observed(self.canvas, window, plan, self.policy))
        return forward_of(self.canvas, plan, positions), positions

    def store(self, plan: RowPlan) -> None:
        """Record that the forward pass of ``plan`` ran and stored its keys and values."""
        self.canvas.stored = np.where(plan.store, self.canvas.tokens, self.canvas.stored)

    def read(
        self,
        window: Window,
        refresh: bool,
        positions: Positions,
        logits: Logits,
        canvas: Canvas | None = None,
    ) -> View:
        """Return the view of ``logits`` [K, V], which predict ``positions`` [K].

        Args:
            refresh: True if the forward pass computed every row of the canvas.
            canvas: the canvas of the forward, if it is not the request's own canvas.
        """
        canvas = canvas or self.canvas
        tokens, sure, processed = propose(self.seq, canvas, logits, positions, self.policy.fuse)
        return View(
            canvas=canvas,
            window=window,
            positions=positions,
            eligible=np.ones(len(positions), bool),
            proposals=tokens,
            confidence=sure,
            logits=processed,
            raw=logits,
            progress=self._pace.at(window),
            refresh=refresh,
            seed=self.seq.sampler.seed,
        ).within(window)

    def narrow(self, view: View, window: Window | None = None) -> View:
        """Return ``view`` with another window and the step counts of that window.

        The default window is the block rule's window after this forward pass.
        """
        view = view.within(window or self.blocks.narrow(view))
        return replace(view, progress=self._pace.at(view.window))

    def commit(self, view: View, decision: Decision, show: bool = True) -> None:
        """Write a decision onto the canvas, and inform the cache rule and the block rule.

        This ends the step. ``show=False`` leaves it to the caller to call :meth:`show`.
        """
        apply(self.canvas, view, decision)
        self.cache.after(view, decision)
        self.blocks.after(view, decision)
        if show:
            self.show(view, decision)

    def show(self, view: View, decision: Decision) -> None:
        """Report a committed step to the request."""
        self._shown.show(view, decision)

    @property
    def shown(self) -> int:
        """One past the last position whose text was shown."""
        return self._shown.shown

    def hold(self, more: bool) -> None:
        """Set whether the window may still be corrected. If so, its text is not shown yet."""
        self._shown.held = self._shown.open = more


def _observed(canvas: Canvas, window: Window, plan: RowPlan, policy: Policy) -> Marks:
    """Return bool [N]: True for positions whose predictions the policy wants from the forward."""
    wanted = (plan.rows if plan.about is None else plan.about).copy()
    wanted[: canvas.start] = False
    if policy.observes != "canvas":
        wanted[: window.start] = False
        wanted[window.end :] = False
    if policy.observes == "masked":
        wanted &= canvas.masked
    if not wanted[window.start : window.end].any():
        raise DecoderError("no position that may be decided is among the rows of the forward")
    return wanted


def decided(policy: Policy, view: View) -> Generator[Apply, Any, Decision]:
    """Run a policy's networks, and return its decision without tokens that the constraint forbids.

    If the decision would change nothing, the most confident position is committed instead.
    """
    yield from policy.prepare(view)
    decision, rules = policy.decide(view), view.canvas.rules
    return view.or_best(decision) if rules is None else fitting(view, decision, rules)


def fitting(view: View, decision: Decision, rules: Rules) -> Decision:
    """Return the part of a decision after which the rest of the canvas can still be filled.

    Each proposed token fits by itself, but not always together with others. The tokens are checked
    in order of confidence, first the tokens for masked positions and then corrections. A correction
    that does not fit is left out. If nothing is left, the most confident eligible proposal that
    fits is committed.
    """
    canvas, commit = view.canvas.copy(), decision.commit
    corrected = np.isin(commit, decision.revoke)
    masked_again = np.setdiff1d(decision.revoke, commit)
    canvas.revoke(masked_again)
    tokens = view.tokens(decision)
    order = np.lexsort((-view.confidence[view.rows(commit)], corrected))
    fit = rules.together(canvas.tokens, canvas.masked, commit[order], tokens[order])
    keep = np.sort(order[fit])
    revoke = np.concatenate([masked_again, commit[keep][corrected[keep]]])
    commit, tokens = commit[keep], tokens[keep]
    if not len(commit) and not len(revoke):
        for position in view.best(view.confidence, len(view.positions)):
            commit = np.array([position])
            tokens = view.proposals[view.rows(commit)]
            if rules.together(canvas.tokens, canvas.masked, commit, tokens).all():
                break
    made = replace(decision, commit=commit, tokens=tokens, revoke=revoke)
    if made.truncate is not None:
        canvas.revoke(commit[np.isin(commit, revoke)])
        canvas.commit(commit, tokens)
        end = made.truncate
        if not rules.fits(canvas.tokens[:end], canvas.masked[:end]):
            made = replace(made, truncate=None)  # The text is not complete there.
    return made


def apply(canvas: Canvas, view: View, decision: Decision) -> None:
    """Write a decision onto a canvas, and count the step.

    Raises:
        DecoderError: if the decision commits a position that the policy did not observe.
    """
    canvas.revoke(decision.revoke)
    commit = decision.commit
    if not np.array_equal(view.positions.take(view.rows(commit), mode="clip"), commit):
        raise DecoderError("a policy may commit observed positions only")
    canvas.commit(commit, view.tokens(decision))
    if decision.truncate is not None:
        canvas.truncate(decision.truncate)
    canvas.steps += 1


class Pace:
    """Counts the steps and masks that :class:`Progress` reports."""

    _block: int | None = None

    def __init__(self, canvas: Canvas, steps: int) -> None:
        self.canvas, self.steps = canvas, steps
        self.masks = self._first = self._before = self._block_masks = 0

    def at(self, window: Window) -> Progress:
        """Return the counts before the decision of a forward pass over ``window``."""
        masked, canvas = self.canvas.masked, self.canvas
        if self._block is None:
            self.masks = int(masked.sum())
        if window.block != self._block:
            self._before += self._block_masks
            self._block, self._first = window.block, canvas.steps
        if canvas.steps == self._first:  # The window may be narrowed after this forward.
            self._block_masks = int(masked[window.shared].sum())
        return Progress(
            steps=self.steps or self.masks,
            step=canvas.steps,
            block_step=canvas.steps - self._first,
            masks=self.masks,
            block_masks=self._block_masks,
            before=self._before,
        )


class ShownText:
    """Shows a request's text up to the first masked position, and reports every step."""

    def __init__(self, seq: TokenSequence, canvas: Canvas, held: bool, patience: int) -> None:
        self.seq, self.canvas, self.held = seq, canvas, held
        self.shown, self.planned, self.open = canvas.start, canvas.end, False
        self.most = patience * (canvas.end - canvas.start) + patience
        self._logprobs: dict[int, TokenLogprob] = {}

    def show(self, view: View, decision: Decision) -> None:
        """Report an applied decision, and append the text that is now complete to the sequence."""
        canvas, seq = self.canvas, self.seq
        if len(decision.revoke) and int(decision.revoke.min()) < self.shown:
            raise DecoderError("text that was shown cannot be revoked; declare that it revises")
        decided = np.sort(decision.commit[decision.commit < canvas.end])
        if seq.params.logprobs is not None:
            self._log(view.raw, view.rows(decided), decided)
        complete = canvas.edge == canvas.end and not self.open
        edge = canvas.edge if complete or not self.held else min(canvas.edge, view.window.start)
        tokens = canvas.tokens[self.shown : edge].tolist()
        known = [
            self._logprobs.pop(at, TokenLogprob(token, 0.0, ()))
            for at, token in enumerate(tokens, self.shown)
        ]
        self.shown = max(self.shown, edge)
        end = ("length" if canvas.end == self.planned else "stop") if complete else None
        step = self._step(view, decision, decided)
        seq.fill(tokens, step, known if seq.params.logprobs is not None else [], end)
        if canvas.steps > self.most:
            raise DecoderError("the policy revokes as much as it commits and does not end")

    def _step(self, view: View, decision: Decision, decided: Positions) -> CanvasStep:
        start, canvas = self.canvas.start, self.canvas
        return CanvasStep(
            offsets=tuple((decided - start).tolist()),
            tokens=tuple(canvas.tokens[decided].tolist()),
            confidences=tuple(view.confidence[view.rows(decided)].tolist()),
            revoked=tuple((decision.revoke - start).tolist()),
            window=(view.window.start - start, view.window.end - start),
            length=canvas.end - start,
            proposed=self._proposed(view) if self.seq.params.logprobs is not None else (),
        )

    def _proposed(self, view: View) -> tuple[tuple[int, int, float], ...]:
        """Return (offset, token, confidence) for each position that is still masked."""
        inside = view.positions < self.canvas.end
        inside[inside] = self.canvas.masked[view.positions[inside]]
        offsets = view.positions[inside] - self.canvas.start
        tokens, confidences = view.proposals[inside], view.confidence[inside]
        return tuple(zip(offsets.tolist(), tokens.tolist(), confidences.tolist(), strict=True))

    def _log(self, raw: Logits, rows: Positions, decided: Positions) -> None:
        """Store the log-probabilities of the newly decided tokens for the request's report."""
        count, tokens = self.seq.params.logprobs or 0, self.canvas.tokens[decided].tolist()
        reports = token_logprobs(raw, rows.tolist(), tokens, count)
        self._logprobs.update(zip(decided.tolist(), reports, strict=True))


# Registers a commit policy as a method: the loop's own settings are added to the policy's.

Class = TypeVar("Class", bound=type[Policy])

NAMES = {
    "block_size": "block_length", "bd_size": "block_length", "diffusion_steps": "steps",
    "denoising_steps": "steps",
}  # fmt: skip
"""Settings of other engines and of the models' scripts -> the loop's names for them."""


@dataclass
class CanvasSettings:
    """The settings of every canvas method."""

    steps: int = parameter(0, 0, 1 << 20, "forwards planned for the canvas; 0: one for each token")
    block_length: int = parameter(0, 0, 1 << 20, "tokens of a block; 0: the model's block, or 32")
    blocks: str = part("fixed", "blocks", "which positions are eligible")
    cache: str = part("none", "cache", "which keys and values are not computed anew")


@dataclass_transform(field_specifiers=(field,))
def policy(
    name: str,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    guarantee: Guarantee = "lossy",
    under: Callable[[Mapping[str, Any]], Guarantee] | None = None,
    driver: Callable[..., Decoder] = Unmask,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    **about: Any,
) -> Callable[[Class], Class]:
    """Decorate a :class:`Policy` dataclass, which becomes available as the method ``name``.

    Args:
        names: other engines' names of settings -> ours.
        guarantee: ``exact`` if the output tokens are the same as from the reference method
            (``static`` with one token per forward pass, the same blocks and no cache).
        under: a function that returns the guarantee which holds for some settings.
        driver: makes the loop from (policy, blocks, cache, block_length, steps). Methods that run
            several canvases in a forward have their own.
        defaults: the method's own defaults for the loop's settings.
        about: ``paper``, ``arxiv``, ``aliases`` and more; see :class:`Method`.
    """

    shared = [
        replace(entry, default=defaults.get(entry.name, entry.default))
        for entry in parameters_of(CanvasSettings)
    ]

    def run(commits: Policy, settings: dict[str, Any]) -> Decoder:
        loop = CanvasSettings(**{**defaults, **settings})
        blocks: Blocks = make("blocks", loop.blocks, f"{name}.blocks")
        cache: CacheRule = make("cache", loop.cache, f"{name}.cache")
        chosen = (commits.clashes, blocks.clashes, cache.clashes)
        _check_clashes(f"{name}.blocks", "blocks", loop.blocks, chosen)
        _check_clashes(f"{name}.cache", "cache", loop.cache, chosen)
        return driver(commits, blocks, cache, loop.block_length, loop.steps)

    def left(settings: Mapping[str, Any]) -> Guarantee:
        chosen = {entry.name: entry.default for entry in shared} | dict(settings)
        blocks, _ = read("blocks", "blocks", chosen["blocks"])
        # A cache changes the text of a model with full attention.
        cache, _ = read("cache", "cache", chosen["cache"])
        left_by_settings: Guarantee = under(settings) if under else "exact"
        return weakest(left_by_settings, blocks.guarantee, cache.guarantee)

    def add(cls: Class) -> Class:
        cls.driven = driver is not Unmask
        return method(
            name, kind="policy", shared=shared, loop=run, family="diffusion", under=left,
            names={**NAMES, **names}, guarantee=guarantee, **about,
        )(cls)  # fmt: skip

    return add


def _check_clashes(where: str, kind: str, text: str, clashes: Iterable[Mapping[str, str]]) -> None:
    """Raise InvalidInput if the chosen block rule or cache clashes with another chosen part."""
    name = text.partition("(")[0].strip()
    keys = [f"{kind}={name}"]
    if name != getattr(CanvasSettings(), kind):
        keys.append(f"{kind}=*")
    for each in clashes:
        for key in keys:
            if key in each:
                raise InvalidInput(where, text, each[key])
