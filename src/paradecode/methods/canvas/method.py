"""Registers a commit policy as a method: the loop's own settings are added to the policy's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from paradecode.core.decoder import Decoder, Guarantee
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.blocks import BLOCKS
from paradecode.methods.canvas.caches import CACHES
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies import POLICIES
from paradecode.methods.registry import (
    Method,
    make_part,
    parameter,
    parameters_of,
    part,
    register,
    told,
)

Class = TypeVar("Class", bound=type)

NAMES = {
    "block_size": "block_length", "bd_size": "block_length", "diffusion_steps": "steps",
    "denoising_steps": "steps",
}  # fmt: skip
"""What other engines and the models' scripts call the settings of the loop."""


@dataclass
class LoopSettings:
    """What every canvas method lets users set."""

    steps: int = parameter(0, 0, 1 << 20, "forwards planned for the canvas; 0: one per token")
    block_length: int = parameter(0, 0, 1 << 20, "tokens of a block; 0: the model's own, or 32")
    blocks: str = part("fixed", BLOCKS, "which positions are eligible")
    cache: str = part("none", CACHES, "which keys and values are not computed anew")


def policy(
    name: str,
    *,
    paper: str,
    arxiv: str | None = None,
    url: str | None = None,
    training: str = "none",
    aliases: tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
    guarantee: Guarantee = "lossy",
    under: Callable[[Mapping[str, Any]], Guarantee] | None = None,
    driver: Callable[..., Decoder] = Unmask,
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Class], Class]:
    """Class decorator: make a :class:`Policy` dataclass available as the method ``name``.

    Args:
        paper, arxiv, url: where the policy comes from.
        training: what has to be trained first.
        aliases: other names for it; ``names`` maps other engines' settings to ours.
        guarantee: ``exact`` if the tokens are those of the reference (``static``, one token a
            forward, with the same blocks and no cache), and ``under`` which settings.
        driver: called with (policy, blocks, cache, block_length, steps); another loop than
            :class:`Unmask`, for methods that forward several canvases at once.
        defaults: of the loop's settings, where this method has others.
    """

    usual = dict(defaults or {})
    shared = [replace(p, default=usual.get(p.name, p.default)) for p in parameters_of(LoopSettings)]

    def add(cls: Class) -> Class:
        own = parameters_of(cls)

        def build(**settings: Any) -> Decoder:
            mine = {p.name: settings[p.name] for p in own if p.name in settings}
            given = {key: value for key, value in settings.items() if key not in mine}
            loop = LoopSettings(**{**usual, **given})
            commits = cls(**mine)
            blocks = make_part(f"{name}.blocks", loop.blocks, BLOCKS)
            cache = make_part(f"{name}.cache", loop.cache, CACHES)
            _check_clashes(name, loop, (commits, blocks, cache))
            return driver(commits, blocks, cache, loop.block_length, loop.steps)

        build.__module__ = cls.__module__  # Where the method lives.

        def left(settings: Mapping[str, Any]) -> Guarantee:
            # A cache changes the text of a model whose rows all see one another.
            if settings.get("cache", usual.get("cache", "none")) != "none":
                return "lossy"
            return under(settings) if under else "exact"

        POLICIES.add(name)(cls)
        register(
            Method(
                name=name,
                family="diffusion",
                guarantee=guarantee,
                training=training,
                paper=paper,
                arxiv=arxiv,
                url=url,
                **told(cls.__doc__),
                parameters=(*own, *shared),
                aliases=aliases,
                names={**NAMES, **(names or {})},
                build=build,
                under=left,
            )
        )
        return cls

    return add


def _check_clashes(method: str, loop: LoopSettings, chosen: Iterable[object]) -> None:
    """Raise InvalidInput if one of the parts says why it cannot work with another one."""
    for setting in ("blocks", "cache"):
        text = getattr(loop, setting)
        key = f"{setting}={text.partition('(')[0].strip()}"
        for each in chosen:
            reason = getattr(each, "clashes", {}).get(key)
            if reason is not None:
                raise InvalidInput(f"{method}.{setting}", text, reason)
