"""Registers a drafter as a method: the loop's own settings are added to the drafter's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from paradecode.core.decoder import Decoder
from paradecode.decoders.autoregressive.budget import BUDGETS
from paradecode.decoders.autoregressive.loop import DraftVerify
from paradecode.decoders.autoregressive.verify import VERIFIERS
from paradecode.decoders.registry import Method, choice, parameter, parameters_of, register

Class = TypeVar("Class", bound=type)
MAX_DRAFT = 64


@dataclass
class LoopSettings:
    """What every draft-and-verify method lets users set."""

    num_speculative_tokens: int = parameter(8, 0, MAX_DRAFT, "most draft tokens in one forward")
    budget: str = choice("auto", tuple(BUDGETS), "auto verifies what pays, fixed all")
    verifier: str = choice("coupled", tuple(VERIFIERS), "rule that accepts draft tokens")


def drafter(
    name: str,
    *,
    paper: str,
    arxiv: str | None = None,
    url: str | None = None,
    training: str = "none",
    aliases: tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
) -> Callable[[Class], Class]:
    """Class decorator: make a :class:`Drafter` dataclass available as the method ``name``.

    Args:
        paper, arxiv, url: where the method comes from.
        training: what has to be trained first.
        aliases: other names for the method; ``names`` maps other engines' settings to ours.
    """

    def add(cls: Class) -> Class:
        own = parameters_of(cls)

        def build(**settings: Any) -> Decoder:
            mine = {p.name: settings[p.name] for p in own if p.name in settings}
            loop = LoopSettings(**{key: v for key, v in settings.items() if key not in mine})
            budget = BUDGETS[loop.budget](loop.num_speculative_tokens)
            return DraftVerify(cls(**mine), budget, VERIFIERS[loop.verifier])

        register(
            Method(
                name=name,
                family="autoregressive",
                guarantee="exact",
                training=training,
                paper=paper,
                arxiv=arxiv,
                url=url,
                summary=(cls.__doc__ or "").strip().partition("\n")[0],
                parameters=(*own, *parameters_of(LoopSettings)),
                aliases=aliases,
                names=names or {},
                build=build,
            )
        )
        return cls

    return add
