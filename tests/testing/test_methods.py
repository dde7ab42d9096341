"""Every registered method passes the suite with its defaults and with extreme settings."""

from collections import Counter
from itertools import chain
from typing import Any

import pytest
from in_the_core import native_backends

from paradecode.methods.specs import Spec, methods, parse
from paradecode.testing.cases import CASES
from paradecode.testing.conformance import ConformanceCase, cases, check, specs, with_parts
from tiers import turning

ESSENTIAL = ("batch-of-16", "mixed-methods", "chunks-of-3", "prefix-cache", "context-end")
"""Cases for further kinds of toys."""

FEW = ("mixed-methods",)
"""Cases for transformers; the toy, which finds every mistake, runs all cases. They run in the
native core, and in the slow tests with PyTorch, which takes several times as long."""

EXTREME = ("batch-of-16", "context-end")
"""Cases for extreme settings, and for budgets and verifiers."""

PARTS = ("draft-model", "suffix")
"""Drafters for budgets and verifiers: trees that a model grows or draws, and looked-up trees."""

CANVAS = ("mixed-methods", "cancelled-neighbour", "stop-strings", "end-of-text", "context-end")
"""Cases for canvas methods that have no reference to equal."""
CANVAS_TOYS = ("toy-shift", "toy-block", "toy-causal-canvas")
CANVAS_TRANSFORMERS = ("llada", "dream", "sdar")

EVERY = (*FEW, *(name for name in CASES if name not in FEW))
"""All cases. ``make test`` runs the first of them for every method, and one other in turn."""


def matrix() -> list[Any]:
    """Return pytest's parameters; most belong to the slow tests."""
    chosen, turns = [], Counter[str]()
    for name, method in sorted(methods().items()):
        turn, own = turns[method.family], specs([name])
        turns[method.family] += bool(own) and name != "greedy"  # It drafts nothing.
        for number, spec in enumerate(own, turn):
            first = int(number % 3 == 0)  # Of the extremes.
            if method.family == "diffusion":
                chosen += canvas_cases(spec, turn, first)
            elif spec.settings:
                chosen += turning(cases(spec, kinds=("toy",), only=EXTREME), turn, first)
            else:
                chosen += turning(cases(spec, kinds=("toy",), only=EVERY), turn, 1, always=1)
                native = cases(spec, native_backends, kinds=("qwen3-near-tie",), only=FEW)
                chosen += turning(native, 0, 1)
    for name in PARTS:
        for spec in with_parts(name):
            greedy = spec.settings.get("verifier") == "greedy"  # It refuses temperatures.
            only = ("stop-tokens" if greedy else EXTREME[0],)
            chosen += turning(cases(spec, kinds=("toy",), only=only), 0, int(name == PARTS[0]))
    return chosen


def further() -> list[ConformanceCase]:
    """Return the other cases: extreme settings in every case, and every architecture."""
    chosen = []
    for spec in specs():
        if spec.method.family == "autoregressive":
            kinds = ("toy",) if spec.settings else ("qwen3-near-tie", "llama")
            chosen += cases(spec, kinds=kinds)
            if not spec.settings:
                chosen += cases(spec, kinds=("qwen2", "mistral-window"), only=ESSENTIAL)
        elif spec.guarantee == "exact" and not spec.settings:
            chosen += cases(spec, kinds=(*CANVAS_TOYS, *CANVAS_TRANSFORMERS), only=ESSENTIAL)
    for spec in chain.from_iterable(map(with_parts, PARTS)):
        if spec.settings.get("verifier") != "greedy":
            chosen += cases(spec, kinds=("toy",), only=FEW)
    done = {(str(case), case.factory) for (case,) in (each.values for each in matrix())}
    return [case for case in chosen if (str(case), case.factory) not in done]


def canvas_cases(spec: Spec, turn: int, extremes: int) -> list[Any]:
    """Return the cases of a canvas method; exact methods get all.

    Behaviour that several methods share is tested once for each component that has it.
    """
    if spec.settings:
        return turning(cases(spec, kinds=("toy-masked",), only=("batch-of-16",)), 0, extremes)
    if spec.guarantee != "exact":
        return turning(cases(spec, kinds=("toy-masked",), only=CANVAS), turn, 1, always=1)
    toys = cases(spec, kinds=CANVAS_TOYS, only=ESSENTIAL)
    transformers = cases(spec, native_backends, kinds=CANVAS_TRANSFORMERS, only=FEW)
    return [
        *turning(cases(spec, kinds=("toy-masked",), only=EVERY), turn, 2, always=1),
        *turning(toys, turn, len(CANVAS_TOYS)), *turning(transformers, turn, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("case", matrix(), ids=str)
def test_method(case: ConformanceCase) -> None:
    case.run()


@pytest.mark.slow
@pytest.mark.parametrize("case", further(), ids=str)
def test_method_further(case: ConformanceCase) -> None:
    case.run()


def test_every_method_is_in_the_matrix() -> None:
    named = {each.values[0].subject.name for each in matrix()}
    assert {"greedy", "prompt-lookup", "prompt-lookup(num_speculative_tokens=1)"} <= named
    assert {"suffix(mode=path)", "layer-skip(pattern=exit)", "mirror-sd(announce=draft)"} <= named


def test_extremes_are_valid_settings() -> None:
    for spec in specs(["prompt-lookup"]):
        assert str(parse(str(spec))) == str(spec)


def test_check_runs_what_it_is_told() -> None:
    check("ngram", kinds=["toy"], only=["max-tokens"])
