"""Read rotary parameters from config.json in the same way as transformers."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import Metadata
from paradecode.models.rope import Rope

_ORIGINAL = "original_max_position_embeddings"


def rope_of(values: Metadata, head_dim: int) -> Rope:
    """Return rotary parameters in the old (rope_theta, rope_scaling) or new (rope_parameters) form.

    As in transformers, ``rope_scaling`` overrides ``rope_parameters``, and these override keys of
    the file itself. Only the file's own ``original_max_position_embeddings`` overrides theirs.
    """
    if isinstance(values.get("rope"), Rope):  # A GGUF file describes them in its own way.
        return values["rope"]
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise InvalidModel("rope_parameters", scaling, "it must be a JSON object")
    if any(isinstance(inner, dict) for inner in scaling.values()):
        fix = "one set of parameters for all layers is known"
        raise InvalidModel("rope_parameters", "a set for each kind of layer", fix)
    outer = {key: values[key] for key in ("rope_theta", "partial_rotary_factor") if key in values}
    if outer.get("partial_rotary_factor", 1) is None:
        outer.pop("partial_rotary_factor")
    scaling = Metadata({"rope_theta": 10000.0, "partial_rotary_factor": 1.0} | outer | scaling)
    if _ORIGINAL in values:
        scaling[_ORIGINAL] = values[_ORIGINAL]
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    partial = scaling.number("partial_rotary_factor")
    rope = Rope(
        theta=scaling.number("rope_theta"),
        dim=int(head_dim * partial) if 0 < partial <= 1 else 0,
    )
    if kind == "default":
        return rope
    if kind not in ("linear", "llama3", "yarn", "dynamic", "longrope"):
        raise InvalidModel(
            "rope_type", kind, "use default, linear, dynamic, llama3, yarn or longrope"
        )
    if kind in ("linear", "dynamic"):
        factor = scaling.number("factor")
        # The other one changes nothing up to the end of the context.
        return replace(rope, scaling=kind, factor=factor) if kind == "linear" else rope
    context = values.whole("max_position_embeddings")
    scaling.setdefault(_ORIGINAL, context)
    original = scaling.whole(_ORIGINAL, None, 1)
    if kind == "longrope":
        return _longrope(rope, scaling, context, original)
    if kind == "llama3":
        return replace(
            rope,
            scaling=kind,
            factor=scaling.number("factor"),
            original_context=original,
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
        )
    if "factor" not in scaling:
        raise InvalidModel("factor", None, "yarn needs it")
    factor = scaling.number("factor", context / original)
    return replace(
        rope,
        scaling=kind,
        factor=factor,
        original_context=original,
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_yarn_attention(scaling, factor),
        # As in transformers, 0 means the default, too.
        beta_fast=scaling.number("beta_fast", 32.0) or 32.0,
        beta_slow=scaling.number("beta_slow", 1.0) or 1.0,
    )


def context_of(values: Metadata, rope: Rope) -> int:
    """Return the largest length up to which the first token's angles stay the same."""
    context = values.whole("max_position_embeddings")
    if rope.scaling != "longrope" or rope.original_context >= context:
        return context
    known = rope.original_context
    said = f"rope: of {context} positions the first {known} are used: longer texts have other"
    warnings.warn(f"{said} angles in longrope", stacklevel=3)
    return known


def _longrope(rope: Rope, scaling: Metadata, context: int, original: int) -> Rope:
    """Return the rotary parameters of LongRoPE (arXiv 2402.13753) within the original context.

    A longer text uses other factors for all of its tokens, so cached rows would be wrong.
    """
    for key in ("short_factor", "long_factor"):
        factors = scaling.get(key)
        if not isinstance(factors, list) or len(factors) != rope.dim // 2:
            raise InvalidModel(key, factors, f"longrope needs a list of {rope.dim // 2} numbers")
    short = [Metadata(short_factor=one).number("short_factor") for one in scaling["short_factor"]]
    factor = scaling.number("factor", context / original)
    gain = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return replace(
        rope, scaling="longrope", factors=tuple(short), original_context=original,
        attention_factor=scaling.number("attention_factor", gain),
    )  # fmt: skip


def _yarn_attention(scaling: Metadata, factor: float) -> float:
    def gain(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if scaling.get("attention_factor") is not None:
        return scaling.number("attention_factor", 1.0)
    above, below = (scaling.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    return gain(above) / gain(below) if above and below else gain(1.0)
