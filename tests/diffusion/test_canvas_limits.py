"""Settings at which one method becomes another: on toys exactly, on transformers in fp64, too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from canvases import ATTENTION, PROMPT, run, toy

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.decoders.diffusion.policies.static import quota
from paradecode.decoders.diffusion.view import Progress
from paradecode.models.tiny import tiny_checkpoint

pytest.importorskip("torch")


def transformer(kind: str) -> Backend:
    return open_backend("torch", *tiny_checkpoint(kind), dtype="fp64", threads=1)


MODELS: dict[str, Callable[[], Backend]] = {
    **{kind: lambda kind=kind: toy(kind) for kind in ATTENTION},
    **{kind: lambda kind=kind: transformer(kind) for kind in ("llada", "dream", "sdar")},
}
models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())

EQUAL = [
    ("threshold(threshold=1.01)", "static"),
    ("factor(factor=0)", "static"),
    ("static(steps=24)", "static"),
    ("static(score=low_confidence)", "static(score=confidence)"),
    ("static(blocks=fixed,block_length=1048576)", "static(blocks=full)"),
    ("static(cache=prefix(refresh=1),block_length=8)", "static(block_length=8)"),
    ("static(cache=dual(refresh=1),block_length=8)", "static(block_length=8)"),
    ("threshold(cache=prefix(refresh=1))", "threshold"),
    ("threshold(threshold=0,block_length=8)", "static(steps=3,block_length=8)"),
]


@models
@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_limits(model: Callable[[], Backend], one: str, other: str) -> None:
    # A prompt of 8 and 24 tokens: blocks of 8 are whole for models with blocks of their own.
    prompt = (*PROMPT, 2)
    a, b = (run(model(), spec, prompt) for spec in (one, other))
    assert a.output == b.output
    assert [s.canvas and s.canvas.offsets for s in a.trace] == [
        s.canvas and s.canvas.offsets for s in b.trace
    ]
    assert a.forwards == b.forwards


@models
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_caches_are_exact_with_blocks_and_save_rows(model: Callable[[], Backend], cache: str):
    plain = run(model(), "static(block_length=8)")
    cached = run(model(), f"static(block_length=8,cache={cache})")
    assert cached.forwards == plain.forwards
    assert cached.rows < plain.rows
    if model().config.attention != "full":
        assert cached.output == plain.output


def test_one_forward_a_block_is_what_it_is_without_a_cache() -> None:
    """Each block's first forward computes everything, so nothing stale is ever read."""
    for kind in ("full", "shift"):
        spec = "threshold(threshold=0,block_length=8,cache={})"
        a, b, c = (run(toy(kind), spec.format(name)) for name in ("none", "prefix", "dual"))
        assert a.output == b.output == c.output
        assert a.forwards == 3


def test_rows_of_each_forward() -> None:
    start, length, block = len(PROMPT), 24, 8
    whole = start + length
    prefix = sum(whole + (block - 1) * (whole - start - block * k) for k in range(3))
    assert run(toy("full"), "static(block_length=8,cache=prefix)").rows == prefix
    assert run(toy("full"), "static(block_length=8,cache=dual)").rows == 3 * (whole + 7 * block)
    assert run(toy("full"), "static(block_length=8)").rows == 24 * whole
    # A shift asks for the row to the left of the block as well, unless its position is decided.
    shifted = run(toy("shift"), "static(block_length=8,cache=dual)").rows
    assert 3 * (whole + 7 * block) < shifted <= 3 * (whole + 7 * (block + 1))


def test_blocks_of_one_are_plain_decoding_of_a_causal_model() -> None:
    for settings in ({}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.0, "top_k": 3}):
        for cache in ("none", "prefix"):
            settings = {"seed": 1, **settings}
            spec = f"static(block_length=1,cache={cache})"
            canvas = run(toy("causal", 200), spec, (5, 6, 7, 8, 9), **settings)
            # The plain method may propose the mask token, so it is banned there, too.
            plain = run(
                toy("causal", 200), "greedy", (5, 6, 7, 8, 9), logit_bias={28: -1000.0}, **settings
            )
            assert canvas.output == plain.output


@pytest.mark.parametrize("tau", [0.0, 0.2, 0.5, 0.9])
def test_a_threshold_commits_what_reaches_it_and_always_the_best(tau: float) -> None:
    for step in run(toy("full"), f"threshold(threshold={tau})").trace:
        assert step.canvas is not None
        sure = [c for c in step.canvas.confidences if c >= tau]
        assert sure == list(step.canvas.confidences) or len(step.canvas.offsets) == 1


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_factor_bounds_the_doubt(factor: float) -> None:
    for step in run(toy("full"), f"factor(factor={factor})").trace:
        assert step.canvas is not None
        sure = sorted(step.canvas.confidences, reverse=True)
        assert all((1 - c) * (n + 1) <= factor for n, c in enumerate(sure[1:], 2))


def test_equal_scores_go_to_the_lowest_position() -> None:
    from paradecode.testing.toy import ToyBackend, toy_config

    class Flat(ToyBackend):
        def head(self, states, tokens):
            return np.zeros((len(states), self.config.vocab_size))

    sequence = run(Flat(toy_config(attention="full")), "static")
    order = [step.canvas.offsets[0] for step in sequence.trace if step.canvas]
    assert order == list(range(24))
    assert set(sequence.output) == {0}  # The lowest token id, too.


@pytest.mark.parametrize(
    ("steps", "blocks"),
    [
        (24, (8, 8, 8)),
        (6, (8, 8, 8)),
        (7, (8, 8, 8)),
        (1, (8, 8, 5)),
        (5, (3, 9, 1)),
        (99, (8, 4)),
    ],
)
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
    """32 masks in 5 steps: 7, 7, 6, 6, 6 (get_num_transfer_tokens of its generate.py)."""
    sizes = [quota(Progress(5, step, step, 32, 32, 0)) for step in range(5)]
    assert sizes == [7, 7, 6, 6, 6]
