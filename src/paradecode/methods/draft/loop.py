"""The draft-and-verify loop, and the decorator that makes a decoding method of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from paradecode.core.decoder import Forward, Guarantee, Steps, TokenSequence, weakest
from paradecode.core.errors import InvalidInput
from paradecode.core.multi_step import MultiStep
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.constrained import ForcedTokens
from paradecode.methods.draft.contracts import LAST, MAX_DRAFT, Offer
from paradecode.methods.draft.contracts import Budget as Budget
from paradecode.methods.draft.contracts import Drafter as Drafter
from paradecode.methods.draft.contracts import Needs as Needs
from paradecode.methods.draft.contracts import Proposal as Proposal
from paradecode.methods.draft.verifiers.coupled import Verifier, coupled
from paradecode.methods.parts import (
    dataclass_transform,
    local_path,
    make,
    method,
    parameter,
    parameters_of,
    part,
    read,
)


@dataclass
class DraftVerify:
    """Decodes a sequence: draft, verify, commit, until the sequence is finished.

    The first forward pass carries the whole prompt and may already carry a draft.
    """

    drafter: Drafter
    budget: Budget
    verify: Verifier = coupled
    forced: ForcedTokens = field(default_factory=ForcedTokens, init=False)

    def __post_init__(self) -> None:
        needs = self.drafter.needs
        self._all_rows = needs.all_rows
        # If the verifier tests p / q, no budget may cut a tree by the tokens that were sampled.
        self._draws = self.verify.reads_draws
        known = self.budget.read() if self.verify.multi_step else None
        self._multi_step = known is not None
        self._resting = MultiStep(steps=self._rest, hidden=self._taps) if needs.rests else None
        noise = self.verify.shares_noise and needs.noise
        draws = self.verify.modes[0] if self._draws and needs.draws else None
        self.drafter.begin(Offer(self.budget, noise, draws))

    def _rest(self) -> int:
        return max(self.budget.rest, self.drafter.rest)

    def _taps(self) -> tuple[int, ...]:
        return self.drafter.hidden

    def decode(self, seq: TokenSequence) -> Steps:
        drafter, budget = self.drafter, self.budget
        drafter.check(seq)
        multi_step = (drafter.multi_step(seq) or self._resting) if self._multi_step else None
        while not seq.finished:
            if multi_step is not None and (made := (yield multi_step)).count:
                # The backend has made several steps, as they follow here.
                drafter.rested(seq, made)
                budget.rested(made.count)
                continue
            # The last free place is for the token that the verification adds.
            limit = min(budget.limit(seq), seq.room - 1, seq.scratch)
            tree = EMPTY
            if limit > 0:
                tree = yield from drafter.propose(seq, limit)
                tree = tree.clip(seq.room - 1)
            else:
                drafter.wait(seq)
            if not (limit > 0 and drafter.whole):
                tree = tree if self._draws else tree.determined()
                if seq.sampler.matcher is not None:
                    tree = self.forced.join(seq, tree)
                if limit > 0 or len(tree):
                    if budget.networks:
                        yield from budget.prepare(seq, tree)
                    tree = budget.cut(seq, tree).capped(seq.scratch)
            hidden = (*drafter.hidden, LAST) if budget.reads_target else drafter.hidden
            # The trace stores the forward's tree, which must not hold the distributions q.
            forward = Forward(seq.pending, tree=tree.determined(), hidden=hidden)
            reply = yield from drafter.score(forward)
            verdict = self.verify(seq, tree, reply)
            if budget.reads_target:
                budget.see_target(seq, tree, reply, verdict)
            seen = tree, reply, verdict
            if seq.sampler.matcher is not None:
                seen = self.forced.observe(*seen, self._all_rows)
            drafter.observe(seq, *seen)
            budget.observe(tree, verdict)
            seq.commit(verdict)


# A drafter becomes a method: the loop's settings are added to the drafter's own.

Class = TypeVar("Class", bound=type[Drafter])
BUDGET, VERIFIER = "auto", "coupled"

OLD_NAMES = {
    "threshold": (None, "threshold"),
    "acceptance_head": ("specdec++", "head"),
    "tree_selector": ("delayed", "selector"),
}
"""Old name of a loop setting -> the budget that has it now (None: any), and its name there."""


@dataclass
class DraftSettings:
    """Settings that users may give to every draft-and-verify method."""

    num_speculative_tokens: int = parameter(8, 0, MAX_DRAFT, "most draft tokens in one forward")
    budget: str = part(BUDGET, "budget", "auto verifies nodes that gain time, fixed verifies all")
    threshold: float = parameter(0.4, 0.0, 1.0, "confidence: least probability; specdec++: risk")
    acceptance_head: str = local_path("head for specdec++, by `paradecode train acceptance-head`")
    tree_selector: str = local_path("selector for delayed, by `paradecode train tree-selector`")
    verifier: str = part(VERIFIER, "verifier", "rule that accepts draft tokens")


@dataclass_transform(field_specifiers=(field,))
def drafter(name: str, **about: Any) -> Callable[[Class], Class]:
    """Make the decorated :class:`Drafter` dataclass available as the method ``name``.

    Args:
        about: ``paper``, ``training``, ``models`` and other fields of :class:`Method`. The default
            of ``guarantee`` holds for every drafter, because a verified draft does not change the
            output.
    """

    return method(
        name, kind="drafter", shared=parameters_of(DraftSettings), loop=partial(assemble, name),
        under=guarantee_under, **about,
    )  # fmt: skip


def assemble(method: str, drafter: Drafter, settings: Mapping[str, Any]) -> DraftVerify:
    """Return the loop of a drafter with the budget and the verifier that the settings name.

    Args:
        method: name of the method. Its requests share measurements under this name.
        settings: values that the user gave for :class:`DraftSettings`.

    Raises:
        InvalidInput: if settings exclude one another.
    """
    budget = _budget(settings)
    budget.begin(method, drafter.needs)
    verify: Verifier = make("verifier", settings.get("verifier", VERIFIER))
    return DraftVerify(drafter, budget, verify)


def _budget(settings: Mapping[str, Any]) -> Budget:
    chosen, own = read("budget", "budget", settings.get("budget", BUDGET))
    takes = [entry.name for entry in chosen.parameters]
    for old, (owner, name) in OLD_NAMES.items():
        value = settings.get(old, "")
        if value == "":
            continue
        if owner not in (None, chosen.name):
            raise InvalidInput(old, chosen.name, f"use it with budget='{owner}'")
        if name in own:
            raise InvalidInput(old, value, f"it is {name} of {chosen.name}: give one of them")
        if name in takes:
            own[name] = value
    count = settings.get("num_speculative_tokens", DraftSettings.num_speculative_tokens)
    budget: Budget = chosen.build(count=count, **own)
    return budget


def guarantee_under(settings: Mapping[str, Any]) -> Guarantee:
    """Return the method's guarantee with the budget and the verifier that the settings name."""
    verifier, _ = read("verifier", "verifier", settings.get("verifier", VERIFIER))
    budget, _ = read("budget", "budget", settings.get("budget", BUDGET))
    return weakest(verifier.guarantee, budget.guarantee)
