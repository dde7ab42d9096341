"""Registers a drafter as a method: the loop's own settings are added to the drafter's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from paradecode.core.decoder import Decoder, Guarantee
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets import (
    BUDGETS,
    Budget,
    CostCurve,
    Delayed,
    SpecDecPP,
)
from paradecode.methods.draft.budgets.residual_head import open_head
from paradecode.methods.draft.budgets.tree_selector import open_selector
from paradecode.methods.draft.loop import Drafter, DraftVerify, grows
from paradecode.methods.draft.verifiers import VERIFIERS
from paradecode.methods.registry import (
    Method,
    choice,
    local_path,
    parameter,
    parameters_of,
    register,
    told,
)

Class = TypeVar("Class", bound=type)
MAX_DRAFT = 64
VERIFIER = "coupled"


@dataclass
class LoopSettings:
    """What every draft-and-verify method lets users set."""

    num_speculative_tokens: int = parameter(8, 0, MAX_DRAFT, "most draft tokens in one forward")
    budget: str = choice("auto", tuple(BUDGETS), "auto verifies what pays, fixed all")
    threshold: float = parameter(0.4, 0.0, 1.0, "confidence: least sure; specdec++: most risk")
    acceptance_head: str = local_path("head for specdec++, by `paradecode train acceptance-head`")
    tree_selector: str = local_path("selector for delayed, by `paradecode train tree-selector`")
    verifier: str = choice(VERIFIER, tuple(VERIFIERS), "rule that accepts draft tokens")


def drafter(
    name: str,
    *,
    paper: str,
    arxiv: str | None = None,
    url: str | None = None,
    training: str = "none",
    aliases: tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
    models: tuple[str, ...] = (),
) -> Callable[[Class], Class]:
    """Class decorator: make a :class:`Drafter` dataclass available as the method ``name``.

    Args:
        paper, arxiv, url: where the method comes from.
        training: what has to be trained first.
        aliases: other names for the method; ``names`` maps other engines' settings to ours.
        models: names of the models that it needs beside the target.
    """

    def add(cls: Class) -> Class:
        own = parameters_of(cls)

        def build(**settings: Any) -> Decoder:
            mine = {p.name: settings[p.name] for p in own if p.name in settings}
            loop = LoopSettings(**{key: v for key, v in settings.items() if key not in mine})
            return assemble(cls(**mine), loop, name)

        build.__module__ = cls.__module__  # Where the method lives.

        register(
            Method(
                name=name,
                family="autoregressive",
                guarantee="exact",
                training=training,
                paper=paper,
                arxiv=arxiv,
                url=url,
                **told(cls.__doc__),
                parameters=(*own, *parameters_of(LoopSettings)),
                aliases=aliases,
                names=names or {},
                build=build,
                models=models,
                under=guarantee_under,
            )
        )
        return cls

    return add


def assemble(drafter: Drafter, loop: LoopSettings, name: str) -> DraftVerify:
    """The drafter of the method ``name`` with the loop's other parts."""
    budget = BUDGETS[loop.budget](loop.num_speculative_tokens, loop.threshold)
    if loop.acceptance_head:
        if not isinstance(budget, SpecDecPP):
            raise InvalidInput("acceptance_head", loop.budget, "use it with budget='specdec++'")
        budget.head = open_head(loop.acceptance_head)
        _needs_rows(budget, drafter, "acceptance_head", loop.acceptance_head)
    if loop.tree_selector:
        if not isinstance(budget, Delayed):
            raise InvalidInput("tree_selector", loop.budget, "use it with budget='delayed'")
        budget.selector = open_selector(loop.tree_selector, MAX_DRAFT)
        _needs_rows(budget, drafter, "tree_selector", loop.tree_selector)
    if isinstance(budget, CostCurve):
        budget.drafter = name
    verifier = VERIFIERS[loop.verifier]
    if loop.verifier == VERIFIER and hasattr(drafter, "shares_noise"):
        drafter.shares_noise = True  # Only this verifier lets a draft look at the target's noise.
    return DraftVerify(drafter, budget, verifier, verifier.reads_draws)


def _needs_rows(budget: Budget, drafter: Drafter, field: str, path: str) -> None:
    if budget.reads_draft and not grows(drafter):
        fix = "it reads a draft model's states: use it with a method that drafts with a model"
        raise InvalidInput(field, path, fix)


def guarantee_under(settings: Mapping[str, Any]) -> Guarantee:
    return VERIFIERS[settings.get("verifier", VERIFIER)].guarantee
