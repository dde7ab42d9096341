"""Which decoders are compared by default, and what the others are measured against."""

from __future__ import annotations

from collections.abc import Iterable

from paradecode.core.errors import InvalidInput
from paradecode.core.request import DRAFT
from paradecode.llm import LLM, PLAIN_DECODERS
from paradecode.methods.registry import Spec, parse

DEFAULTS = {
    "autoregressive": (
        "prompt-lookup", "suffix", "token-recycling", "prompt-lookup+token-recycling",
    ),
    "diffusion": ("threshold", "factor", "freedave"),
}  # fmt: skip


def choose(llm: LLM, wanted: Iterable[str]) -> list[Spec]:
    """Plain decoding first, then what was asked for (by default a few of the family), each once.

    Raises:
        InvalidInput: a spec is not understood, or this model cannot be decoded so.
    """
    family = llm.families[0]
    usual: tuple[str, ...] = DEFAULTS[family]
    if llm.draft_model is not None and family == "autoregressive":
        usual = (*usual, "draft-model")
    chosen: dict[str, Spec] = {}
    for text in (PLAIN_DECODERS[family], *(wanted or usual)):
        spec = parse(text)
        if spec.method.family != family:
            fix = f"{llm.model} needs {family} methods, such as {DEFAULTS[family][0]}"
            raise InvalidInput("decoder", text, fix)
        if DRAFT in spec.method.models and llm.draft_model is None:
            raise InvalidInput("draft_model", None, f"{text} needs one: name a smaller model")
        chosen[str(spec)] = spec
    return list(chosen.values())
