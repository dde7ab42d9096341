"""The methods that the suite compares by default, and the plain method of each."""

from __future__ import annotations

from collections.abc import Iterable

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import known, written
from paradecode.methods.specs import Spec, methods, parse

REFERENCE = "static"
"""The method that every ratio refers to: it decides one token per forward, and caches nothing."""

STEPS = (32, 16, 8, 4, 2, 1)
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
FACTORS = (0.25, 0.5, 1.0, 2.0)
BLOCK = 8
"""Block length, in positions, of the settings with caches.

A block as long as the canvas would save hardly any row.
"""
IN_BLOCKS = f"{REFERENCE}(block_length={BLOCK})"
"""Plain decoding in blocks, which makes ratios fair.

Without blocks, plain decoding spends forwards on positions after the end of the text, which would
flatter all other methods.
"""

NEED_BLOCKS = ("two_level", "lead")


def default_methods(has_blocks: bool) -> list[str]:
    """Return the methods that are compared by default.

    Args:
        has_blocks: whether the model's attention has blocks. Without them some caches cannot be
            used, and some block rules equal other ones.
    """
    chosen, rules = (
        [name for name in known(kind) if has_blocks or name not in NEED_BLOCKS]
        for kind in ("cache", "blocks")
    )
    policies = [m.name for m in methods().values() if m.family == "diffusion"]
    trained = {m.name for m in methods().values() if m.training != "none"}
    specs = [
        REFERENCE,
        *(f"static(steps={steps})" for steps in STEPS),
        *(f"static(score=random,steps={steps})" for steps in STEPS[1:4]),
        *(f"threshold(threshold={threshold})" for threshold in THRESHOLDS),
        *(f"factor(factor={factor})" for factor in FACTORS),
        "freedave(draft_steps=8)",
        "assd(tokens=1)",
        *(name for name in sorted(policies) if name not in trained),
        *(f"{name}(block_length={n})" for name in ("static", "threshold") for n in (4, BLOCK, 16)),
        *(f"threshold(blocks={rule})" for rule in rules),
        *(f"static(block_length={BLOCK},cache={cache})" for cache in ("prefix", "dual")),
        *(f"threshold(block_length={BLOCK},cache={cache})" for cache in chosen),
    ]
    return canonical(spec for spec in specs if _is_possible(spec))


def canonical(specs: Iterable[str]) -> list[str]:
    """Return specs in the registry's spelling, each once, without settings at their defaults.

    Raises:
        InvalidInput: a spec is not understood, or its method is no canvas method.
    """
    return list(dict.fromkeys(str(shortest(read(spec))) for spec in specs))


def read(spec: str) -> Spec:
    """Parse a spec of a canvas method; raises InvalidInput if it is none."""
    found = parse(spec)
    if found.method.family != "diffusion":
        fix = "the parallel suite compares diffusion methods, such as threshold"
        raise InvalidInput("methods", spec, fix)
    return found


def shortest(spec: Spec) -> Spec:
    """Return the same method without settings that have their defaults."""
    usual = {entry.name: entry.default for entry in spec.method.parameters}
    left = {key: value for key, value in spec.settings.items() if value != usual[key]}
    return parse({"method": spec.method.name, **left})


def plain_of(spec: str) -> str:
    """Return the reference with the same blocks as ``spec``.

    An exact method gives the same output.
    """
    found = read(spec)
    blocks = {"block_length", "blocks"}
    kept = {key: value for key, value in found.settings.items() if key in blocks}
    return canonical([written(REFERENCE, kept)])[0]


def without_cache(spec: str) -> str:
    """Return the same method with ``cache=none``."""
    found = read(spec)
    kept = {key: value for key, value in found.settings.items() if key != "cache"}
    return canonical([written(found.method.name, kept)])[0]


def cache_of(spec: str) -> str:
    """Return the name of the method's cache, without its settings."""
    return str(read(spec).settings.get("cache", "none")).partition("(")[0]


def _is_possible(spec: str) -> bool:
    """Decide whether the registry accepts this combination."""
    try:
        parse(spec)
    except InvalidInput:
        return False
    return True
