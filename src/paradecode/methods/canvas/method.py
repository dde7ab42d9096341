"""Registers a commit policy as a method: the loop's own settings are added to the policy's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from paradecode.core.decoder import Decoder, Guarantee, weakest
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import Blocks
from paradecode.methods.canvas.caches.base import CacheRule
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.parts import (
    make,
    method,
    parameter,
    parameters_of,
    part,
    read,
)

Class = TypeVar("Class", bound=type[Policy])

NAMES = {
    "block_size": "block_length", "bd_size": "block_length", "diffusion_steps": "steps",
    "denoising_steps": "steps",
}  # fmt: skip
"""Names of settings in other engines and in the models' scripts -> the loop's settings."""


@dataclass
class CanvasSettings:
    """The settings of every canvas method."""

    steps: int = parameter(0, 0, 1 << 20, "forwards planned for the canvas; 0: one per token")
    block_length: int = parameter(0, 0, 1 << 20, "tokens of a block; 0: the model's own, or 32")
    blocks: str = part("fixed", "blocks", "which positions are eligible")
    cache: str = part("none", "cache", "which keys and values are not computed anew")


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
    """Class decorator: make a :class:`Policy` dataclass available as the method ``name``.

    Args:
        names: other engines' names of settings -> ours.
        guarantee: ``exact`` if the tokens are those of the reference (``static``, one token a
            forward, with the same blocks and no cache).
        under: returns the guarantee that some settings leave.
        driver: makes the loop from (policy, blocks, cache, block_length, steps); methods that run
            several canvases in a forward have their own.
        defaults: the method's own defaults of the loop's settings.
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
        # A cache changes the text of a model whose rows all see one another.
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
    """Raise InvalidInput if one of the parts cannot work with the chosen one."""
    name = text.partition("(")[0].strip()
    keys = [f"{kind}={name}"]
    if name != getattr(CanvasSettings(), kind):
        keys.append(f"{kind}=*")
    for each in clashes:
        for key in keys:
            if key in each:
                raise InvalidInput(where, text, each[key])
