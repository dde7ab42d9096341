"""The limits of the methods on the models that ship, on the native core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from canvases import UNTRAINED, run_all, steps
from limits import FRESH, SPARSE, TABLES, Limit, Model, agree, trained

from paradecode.backends.native.backend import NativeBackend
from paradecode.core.sampling import SamplingParams
from paradecode.models.catalogue import list_models, open_model
from paradecode_lab.measure.tasks.tasks import BY_NAME

DIFFUSION, TWIN = "paradecode/tiny-diffusion", "paradecode/tiny-autoregressive"
pytestmark = pytest.mark.skipif(
    not {DIFFUSION, TWIN} <= {listed.name for listed in list_models() if listed.present},
    reason="the models are not trained yet: docs/training.md",
)

FIRST, OTHERS = "shuffle", ("addition", "replace-random", "json")
"""Tasks: all tests run the first one; slow tests run the others, with longer prompts and
answers."""


@cache
def shipped(task: str) -> Model:
    """The diffusion model, and the shortest of some held-out prompts of a task."""
    return Model(backend_of(DIFFUSION), prompts_of(DIFFUSION, task)[0])


@cache
def twin() -> Model:
    """The autoregressive model: rows are about the next token, and see what is before them."""
    return Model(backend_of(TWIN), prompts_of(TWIN, FIRST)[0])


@cache
def backend_of(name: str) -> NativeBackend:
    """One that has no mask token, but the word for it, gets it."""
    checkpoint = open_model(name)
    config, mask = checkpoint.config, checkpoint.tokenizer.encode("<|mask|>")[0]
    if config.mask_token is None:
        config = replace(config, mask_token=mask, shift=True)
    return NativeBackend(config, checkpoint.weights, threads=1)


def prompts_of(name: str, task: str) -> list[list[int]]:
    checkpoint = open_model(name)
    assert checkpoint.chat_template is not None
    found = [
        checkpoint.chat_template.encode(
            checkpoint.tokenizer, [{"role": "user", "content": instance.prompt}]
        )
        for instance in BY_NAME[task].held_out(12)
    ]
    return sorted(found, key=len)


def every_model() -> Iterator[object]:
    yield pytest.param(lambda: shipped(FIRST), id=FIRST)
    for task in OTHERS:
        yield pytest.param(lambda task=task: shipped(task), id=task, marks=pytest.mark.slow)
    yield pytest.param(twin, id="twin", marks=pytest.mark.slow)


models = pytest.mark.parametrize("model", [*every_model()])


@pytest.mark.first(1)
@models
@pytest.mark.parametrize("table", TABLES)
def test_limits(model: Callable[[], Model], table: Callable[[], Iterator[Limit]]) -> None:
    agree(table(), model())


@models
def test_trained_parts(model: Callable[[], Model], tmp_path: Path) -> None:
    agree(trained(model(), tmp_path), model())


def test_the_limits_are_limits() -> None:
    """A little off the limits, texts and trajectories differ; otherwise this file would test
    nothing."""
    model = shipped(FIRST)
    plain = model.plain("static(block_length=8)")
    for spec in ("threshold(threshold=0.5,block_length=8)", "static(steps=4,block_length=8)",
                 "prophet(high=4,middle=4,low=4)", "remask(block_length=8)",
                 "static(block_length=8,cache=dkv_greedy(refresh=9))"):  # fmt: skip
        assert steps(model.run(spec)) != steps(plain), spec


def jobs(specs: Sequence[str]) -> list[tuple[str, Sequence[int], SamplingParams]]:
    """Requests that differ in all respects: prompts, lengths, temperatures."""
    prompts = [prompts_of(DIFFUSION, task)[-1] for task in ("shuffle", "addition", "json")]
    return [
        (
            spec, prompts[number % 3],
            SamplingParams(
                max_tokens=16 + number % 3 * 8, temperature=(0.0, 0.8)[number % 2], seed=number
            ),
        )
        for number, spec in enumerate(specs)
    ]  # fmt: skip


@pytest.mark.first(1)
@pytest.mark.parametrize("first", range(3))
def test_a_batch_changes_no_bit(first: int) -> None:
    """Every policy and every cache among others, and alone: confidences included."""
    with_caches = [f"threshold(block_length=8,cache={c})" for c in (*SPARSE, *FRESH, "dual")]
    specs = [*UNTRAINED, *with_caches][first::3]
    backend = backend_of(DIFFUSION)
    together = run_all(backend, jobs(specs))
    for job, sequence in zip(jobs(specs), together, strict=True):
        (alone,) = run_all(backend, [job])
        assert sequence.error is None
        assert alone.output == sequence.output, job[0]
        assert steps(alone) == steps(sequence), job[0]


@pytest.mark.parametrize("task", ["reverse", "addition"])
def test_blocks_of_one_are_plain_decoding(task: str) -> None:
    """The causal twin decodes so; the plain method might propose the mask token, so it is banned
    there."""
    backend, prompt = backend_of(TWIN), prompts_of(TWIN, task)[0]
    mask = backend.config.mask_token
    for settings in ({}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.0, "top_k": 3}):
        values = {"max_tokens": 24, "seed": 1, **settings}
        plain = SamplingParams(**values, logit_bias={mask: -1000.0})
        specs = [f"static(block_length=1,cache={cache})" for cache in ("none", "prefix", *SPARSE)]
        requests = [("greedy", prompt, plain)]
        requests += [(spec, prompt, SamplingParams(**values)) for spec in specs]
        wanted, *made = run_all(backend, requests)
        for spec, sequence in zip(specs, made, strict=True):
            assert sequence.error is None, spec
            assert sequence.output == wanted.output, spec
