"""Registers a drafter as a method: the loop's own settings are added to the drafter's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from paradecode.core.decoder import Decoder, Guarantee, weakest
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets.base import Budget
from paradecode.methods.draft.loop import MAX_DRAFT, Drafter, DraftVerify
from paradecode.methods.draft.verifiers.coupled import Verifier
from paradecode.methods.parts import (
    Method,
    declare,
    local_path,
    make,
    origin,
    parameter,
    parameters_of,
    part,
    read,
    register,
    told,
)

Class = TypeVar("Class", bound=type[Drafter])
BUDGET, VERIFIER = "auto", "coupled"

OLD_NAMES = {
    "threshold": (None, "threshold"),
    "acceptance_head": ("specdec++", "head"),
    "tree_selector": ("delayed", "selector"),
}
"""Settings of the loop that belong to a budget -> the budget (None: any) and its setting."""


@dataclass
class DraftSettings:
    """The settings that users may give to every draft-and-verify method."""

    num_speculative_tokens: int = parameter(8, 0, MAX_DRAFT, "most draft tokens in one forward")
    budget: str = part(BUDGET, "budget", "auto verifies what pays, fixed all")
    threshold: float = parameter(0.4, 0.0, 1.0, "confidence: least sure; specdec++: most risk")
    acceptance_head: str = local_path("head for specdec++, by `paradecode train acceptance-head`")
    tree_selector: str = local_path("selector for delayed, by `paradecode train tree-selector`")
    verifier: str = part(VERIFIER, "verifier", "rule that accepts draft tokens")


def drafter(name: str, **about: Any) -> Callable[[Class], Class]:
    """Class decorator: make a :class:`Drafter` dataclass available as the method ``name``.

    Args:
        about: ``paper``, ``training``, ``models`` and the like; see :class:`Method`. The default
            of ``guarantee`` holds for every drafter, because verified drafts change nothing.
    """

    def add(cls: Class) -> Class:
        own = parameters_of(cls)

        def build(**settings: Any) -> Decoder:
            mine = {p.name: settings.pop(p.name) for p in own if p.name in settings}
            return assemble(name, cls(**mine), settings)

        build.__module__ = cls.__module__  # Where the method lives.

        declare("drafter", name, **origin(about))(cls)
        register(
            Method(
                name=name,
                parameters=(*own, *parameters_of(DraftSettings)),
                build=build,
                under=guarantee_under,
                **told(cls.__doc__),
                **about,
            )
        )
        return cls

    return add


def assemble(method: str, drafter: Drafter, settings: Mapping[str, Any]) -> DraftVerify:
    """A drafter with a budget and a verifier.

    Args:
        method: name of the method, under which its requests share what they learn.
        settings: the given settings of :class:`DraftSettings`.

    Raises:
        InvalidInput: for settings that do not go together.
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
    """The guarantee that a method has under these settings of its budget and verifier."""
    verifier, _ = read("verifier", "verifier", settings.get("verifier", VERIFIER))
    budget, _ = read("budget", "budget", settings.get("budget", BUDGET))
    return weakest(verifier.guarantee, budget.guarantee)
