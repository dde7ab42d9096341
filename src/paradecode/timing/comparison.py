"""Compares methods with plain decoding on a user's own prompts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
"""With fewer prompts than this, the result carries a note that it is only an impression."""


@dataclass(frozen=True)
class Comparison:
    """The answers of a method and of plain decoding to the same prompts.

    Attributes:
        spec: spec of the method.
        plain, made: answers of plain decoding, and of the method, in the order of the prompts.
        bounded: True if the number of forward passes bounds the speed-up, because the method
            verifies every token.
    """

    spec: Spec
    plain: Sequence[Completion]
    made: Sequence[Completion]
    bounded: bool

    @property
    def over(self) -> float:
        """The speed relative to plain decoding, over all prompts; 0 if nothing was timed."""
        return _ratio(speed(self.made), speed(self.plain))

    @property
    def each(self) -> list[float]:
        """The speed relative to plain decoding, for each prompt; 0 if nothing was timed."""
        return [_ratio(speed([made]), speed([plain])) for made, plain in self._pairs]

    @property
    def tokens_a_forward(self) -> float:
        made = sum(answer.stats.generated for answer in self.made)
        return _ratio(made, sum(answer.stats.forwards for answer in self.made))

    @property
    def suspicious(self) -> bool:
        """True if the forward passes after the first commits do not explain the speed-up."""
        forwards = sum(answer.stats.forwards - 1 for answer in self.made)
        return self.bounded and is_suspicious(self.over, _later(self.made), forwards)

    @cached_property
    def differences(self) -> list[int | None]:
        """For each prompt, the index of the first token that differs, or None if all are equal."""
        return [_difference(made.token_ids, plain.token_ids) for made, plain in self._pairs]

    @property
    def _pairs(self) -> list[tuple[Completion, Completion]]:
        return list(zip(self.made, self.plain, strict=True))


def is_bounded(spec: Spec) -> bool:
    """Return whether forwards bound a method's speed-up; see :mod:`paradecode.timing.doubts`."""
    return spec.method.family == "autoregressive" and verifies(str(spec), spec.guarantee)


def compare(
    prompts: Said | Sequence[Said],
    methods: str | Sequence[str] = AUTO,
    *,
    model: LLM | str | PathLike[str] | None = None,
    **sampling: Unpack[SamplingSettings],
) -> ResultTable:
    """Answer prompts with plain decoding and with methods, one at a time, and compare the speeds.

    The model and the methods are warmed up on another prompt first. Each prompt is then answered
    with plain decoding and with each method in turn. Each method is a tenant of its own, so none
    uses text or statistics from another one.

    Args:
        prompts: prompts in a form that :meth:`paradecode.LLM.chat` takes.
        methods: specs of methods, such as ``"suffix"``.
        model: a loaded model, or the name or path of one for :class:`paradecode.LLM`; None is the
            default model.
        sampling: fields of :class:`paradecode.SamplingParams`. The defaults are 128 for
            ``max_tokens`` and 0 for ``seed``.

    Returns:
        A row for plain decoding and for each method. ``tokens/s`` is the speed after the first
            commit. ``speed-up`` is the ratio to plain decoding over all prompts; ``lowest`` and
            ``highest`` are the extremes over single prompts. ``same tokens`` counts the prompts
            with the same tokens as plain decoding. The notes say why speeds may be doubtful.

    Raises:
        InvalidInput: if prompts, methods or settings cannot be used.
        InvalidModel: if the model cannot be loaded.
        Exception: the error that ended a request.
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
    plain, *compared = (
        Comparison(spec, made[0], outputs, is_bounded(spec)) for spec, outputs in zip(specs, made)
    )
    notes += [f"{each.spec}: {SUSPICIOUS}" for each in compared if each.suspicious]
    if others is not None and others > QUIET:
        notes.append(f"{BUSY}: these speeds are not the machine's own.")
    return ResultTable(tuple(map(_row, [plain, *compared])), tuple(notes))


def _row(one: Comparison) -> Mapping[str, Any]:
    """Return the table row of one method."""
    return {
        "method": str(one.spec),
        "guarantee": one.spec.guarantee,
        "tokens/s": speed(one.made),
        "speed-up": one.over,
        "lowest": min(one.each),
        "highest": max(one.each),
        "tokens a forward": one.tokens_a_forward,
        "same tokens": one.differences.count(None),
        "prompts": len(one.made),
    }


def speed(outputs: Sequence[Completion]) -> float:
    """Return the tokens per second after the first commits; 0 if nothing was timed."""
    return _ratio(_later(outputs), sum(output.stats.decode_seconds for output in outputs))


def _later(outputs: Sequence[Completion]) -> int:
    """Return the number of tokens after the first commits."""
    return sum(output.stats.generated - output.stats.first_tokens for output in outputs)


def _difference(made: Sequence[int], plain: Sequence[int]) -> int | None:
    if made == plain:
        return None
    shared = min(len(made), len(plain))
    return next((at for at in range(shared) if made[at] != plain[at]), shared)


def _ratio(value: float, over: float) -> float:
    return value / over if over else 0.0
