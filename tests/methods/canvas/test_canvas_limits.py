"""Tests the limits: exactly on toy models, and on transformers in fp64."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bounds import bounds_of
from canvases import ATTENTION, MASK, PROMPT, run, run_all, toy
from limits import LENGTH, SPARSE, TABLES, Limit, Model, agree, policies, trained

from paradecode.backends import open_backend
from paradecode.core.sampling import SamplingParams
from paradecode.methods.canvas.canvas import Progress
from paradecode.methods.canvas.policies.base import quota
from paradecode.models.tiny import tiny_checkpoint

pytest.importorskip("torch")

PLACES = (*PROMPT, 2)
"""The tokens of the prompt: as many as a block has, which is 8."""


def transformer(kind: str) -> Model:
    checkpoint = tiny_checkpoint(kind)
    return Model(open_backend("torch", *checkpoint, dtype="fp64", threads=1), PLACES, bits=False)


TRANSFORMERS = ("llada", "dream", "sdar")
MODELS: dict[str, Callable[[], Model]] = {
    **{kind: functools.cache(lambda kind=kind: Model(toy(kind), PLACES)) for kind in ATTENTION},
    **{kind: functools.cache(lambda kind=kind: transformer(kind)) for kind in TRANSFORMERS},
}
"""Name -> a function that returns the model, which is opened once.

Transformers run the limits of trained parts; their other limits are slow tests.
"""


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if name in TRANSFORMERS else ()


models = pytest.mark.parametrize(
    "model", [pytest.param(m, id=name, marks=marks(name)) for name, m in MODELS.items()]
)


@pytest.mark.first(2)
@models
def test_limits_of_policies(model: Callable[[], Model]) -> None:
    agree(policies(), model())


@pytest.mark.first(5)
@models
@pytest.mark.parametrize("table", TABLES[1:])
def test_limits(model: Callable[[], Model], table: Callable[[], Iterator[Limit]]) -> None:
    agree(table(), model())


@pytest.mark.first(4)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_trained_parts(model: Callable[[], Model], tmp_path: Path) -> None:
    opened = model()
    agree(trained(opened, tmp_path), opened)


@pytest.mark.first(1)
@models
def test_bounds(model: Callable[[], Model]) -> None:
    opened = model()
    for bound in bounds_of(opened):
        bound(opened)


def test_equal_scores_go_to_the_lowest_position() -> None:
    from paradecode.testing.toy import ToyBackend, toy_config

    class Flat(ToyBackend):
        def head(self, states, tokens):
            return np.zeros((len(states), self.config.vocab_size))

    sequence = run(Flat(toy_config(attention="full")), "static")
    order = [step.canvas.offsets[0] for step in sequence.trace if step.canvas]
    assert order == list(range(24))
    assert set(sequence.output) == {0}  # The lowest token id, too.


@pytest.mark.parametrize(("steps", "blocks"), [
    (24, (8, 8, 8)), (6, (8, 8, 8)), (7, (8, 8, 8)), (1, (8, 8, 5)), (5, (3, 9, 1)), (99, (8, 4)),
])  # fmt: skip
def test_schedules_end_when_their_blocks_do(steps: int, blocks: tuple[int, ...]) -> None:
    masks, used, before = sum(blocks), 0, 0
    for size in blocks:
        left, step = size, 0
        while left:
            left -= min(left, quota(Progress(steps, used, step, masks, size, before)))
            step, used = step + 1, used + 1
        before += size
    assert used <= max(min(steps, masks), len(blocks))
    if all(size * steps % masks == 0 for size in blocks) and steps <= masks:
        assert used == steps


def test_llada_s_schedule() -> None:
    """LLaDA's schedule splits 32 masks into steps of 7, 7, 6, 6 and 6.

    This is get_num_transfer_tokens of its generate.py.
    """
    sizes = [quota(Progress(5, step, step, 32, 32, 0)) for step in range(5)]
    assert sizes == [7, 7, 6, 6, 6]


@pytest.mark.parametrize("values", [{}, {"temperature": 0.9}, {"temperature": 1.0, "top_k": 3}])
def test_blocks_of_one_are_plain_decoding(values: dict[str, Any]) -> None:
    """With blocks of one position a causal model decodes the text of the plain method.

    The mask token is banned in the plain method, which might propose it.
    """
    params = SamplingParams(max_tokens=LENGTH, seed=5, **values)
    specs = [f"static(block_length=1,cache={cache})" for cache in ("none", "prefix", *SPARSE)]
    plain = replace(params, logit_bias={MASK: -1000.0})
    jobs = [("greedy", PLACES, plain), *((spec, PLACES, params) for spec in specs)]
    wanted, *made = run_all(toy("causal"), jobs)
    assert [one.output for one in made] == [wanted.output] * len(specs)
