"""Methods beside plain decoding, on a user's own prompts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from paradecode.completion import Completion
from paradecode.core.result_table import ResultTable
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.llm.requests import Said, each_of
from paradecode.llm.settings import SamplingSettings
from paradecode.methods.choice import AUTO
from paradecode.methods.specs import Spec
from paradecode.timing.doubts import BUSY, SUSPICIOUS, is_suspicious, verifies
from paradecode.timing.other_load import QUIET, OtherLoad
from paradecode.timing.warm_up import warm_up

if TYPE_CHECKING:
    from typing_extensions import Unpack

FEW = 3
"""Fewer prompts than these give an impression, and no measurement."""


def compare(
    prompts: Said | Sequence[Said],
    methods: str | Sequence[str] = AUTO,
    *,
    model: LLM | str | PathLike[str] | None = None,
    **sampling: Unpack[SamplingSettings],
) -> ResultTable:
    """Answer prompts plainly and with methods, one request at a time, and compare the speeds.

    The model and the methods are warmed up on another prompt first. Each prompt is then answered
    plainly and with each method in turn. Each of them is a tenant of its own, so that none finds
    what another one has read or learned.

    Args:
        prompts: as in :meth:`paradecode.LLM.chat`.
        methods: specs of methods, such as ``"suffix"``.
        model: a loaded model, or what :class:`paradecode.LLM` takes; None is the default model.
        sampling: fields of :class:`paradecode.SamplingParams`. ``max_tokens`` is 128 and ``seed``
            is 0 where they are not given.

    Returns:
        A row for plain decoding and for each method. ``tokens/s`` is the speed behind the first
        commit. ``speed-up`` is the ratio to plain decoding's, over all prompts, and ``lowest`` and
        ``highest`` are those of single prompts. ``same tokens`` counts the prompts whose tokens
        equal plain decoding's. The notes say what makes the speeds doubtful.

    Raises:
        InvalidInput: for prompts, methods or settings that cannot be used.
        InvalidModel: for a model that cannot be loaded.
        Exception: what ended a request.
    """
    params = SamplingParams.from_mapping({"max_tokens": 128, "seed": 0, **sampling})
    asked = each_of(prompts)
    if not isinstance(model, LLM):
        with LLM(model) as loaded:
            return _compared(loaded, asked, methods, params)
    return _compared(model, asked, methods, params)


def _compared(
    llm: LLM, prompts: Sequence[Said], methods: str | Sequence[str], params: SamplingParams
) -> ResultTable:
    names = [methods] if isinstance(methods, str) else methods
    specs = [llm.spec(name) for name in (None, *names)]
    warm_up(llm, specs[1:], params)
    load, tenant = OtherLoad(), secrets.token_hex(8)
    made: list[list[Completion]] = [[] for _ in specs]
    for prompt in prompts:
        for outputs, spec in zip(made, specs):
            outputs.append(llm.chat(prompt, params, decoder=spec, salt=f"{tenant} {spec}"))
    _, others = load.look()
    notes = []
    if len(prompts) < FEW:
        notes.append(f"With fewer than {FEW} prompts the speed-ups are only an impression.")
    rows = [_row(spec, outputs, made[0]) for spec, outputs in zip(specs, made)]
    for spec, outputs, row in zip(specs[1:], made[1:], rows[1:]):
        bounded = llm.families[0] == "autoregressive" and verifies(str(spec), spec.guarantee)
        if bounded and is_suspicious(row["speed-up"], _later(outputs), _forwards(outputs)):
            notes.append(f"{spec}: {SUSPICIOUS}")
    if others is not None and others > QUIET:
        notes.append(f"{BUSY}: these speeds are not the machine's own.")
    return ResultTable(tuple(rows), tuple(notes))


def _row(spec: Spec, outputs: list[Completion], plain: list[Completion]) -> Mapping[str, Any]:
    """The figures of one method."""
    pairs = list(zip(outputs, plain))
    ratios = [_ratio(_speed([output]), _speed([other])) for output, other in pairs]
    made = sum(output.stats.generated for output in outputs)
    return {
        "method": str(spec),
        "guarantee": spec.guarantee,
        "tokens/s": _speed(outputs),
        "speed-up": _ratio(_speed(outputs), _speed(plain)),
        "lowest": min(ratios),
        "highest": max(ratios),
        "tokens a forward": made / sum(output.stats.forwards for output in outputs),
        "same tokens": sum(output.token_ids == other.token_ids for output, other in pairs),
        "prompts": len(pairs),
    }


def _speed(outputs: Sequence[Completion]) -> float:
    """Tokens a second behind the first commits; 0 where nothing was timed."""
    return _ratio(_later(outputs), sum(output.stats.decode_seconds for output in outputs))


def _later(outputs: Sequence[Completion]) -> int:
    """Tokens behind the first commits."""
    return sum(output.stats.generated - output.stats.first_tokens for output in outputs)


def _forwards(outputs: Sequence[Completion]) -> int:
    """Target forwards behind the first commits."""
    return sum(output.stats.forwards - 1 for output in outputs)


def _ratio(value: float, over: float) -> float:
    return value / over if over else 0.0
