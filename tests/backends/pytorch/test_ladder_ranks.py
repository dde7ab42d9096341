"""Two ranks run the next part of a ladder while they sum what a part made (gloo, CPU)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive import random_weights, tiny_config

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

from torch.distributed import _functional_collectives as collectives

from paradecode.backends.torch.backend import TorchBackend
from paradecode.backends.torch.parallel.leader import ParallelBackend
from patience import PATIENCE
from spans import span

BASE = tiny_config()
LADDER = replace(BASE.stack[0], ladder=True)
CONFIG = replace(BASE, stack=(LADDER, LADDER, BASE.stack[0]))
PROMPT = np.random.default_rng(0).integers(0, 61, 12)


@pytest.fixture(scope="module")
def two() -> Iterator[ParallelBackend]:
    weights = random_weights(CONFIG)
    two = ParallelBackend(CONFIG, weights, ranks=2, dtype="fp32", threads=1, seconds=PATIENCE)
    try:
        two.reserve(4)
        yield two
    finally:
        two.close()


def greedy(backend: TorchBackend) -> tuple[list[int], np.ndarray]:
    """Return ten tokens behind the prompt, and the logits of all rows."""
    new, context, tokens, logits = PROMPT, 0, [], []
    for _ in range(10):
        logits.append(backend.forward([span([0, 1], new, context)])[0].logits.values)
        context += len(new)
        new = logits[-1][-1:].argmax(axis=1)
        tokens.append(int(new[0]))
    return tokens, np.concatenate(logits)


def test_two_ranks_equal_one(two: ParallelBackend) -> None:
    one = TorchBackend(CONFIG, random_weights(CONFIG), dtype="fp32", threads=1)
    one.reserve(4)
    (wanted, right), (tokens, logits) = greedy(one), greedy(two)
    assert tokens == wanted
    np.testing.assert_allclose(logits, right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("first", [True, False])
def test_a_sum_is_waited_for_behind_the_next_part(
    two: ParallelBackend, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """A ladder's sum starts, the next part runs, and only then the sum is waited for.

    Ranks that do not add the stream to their share wait as the first one does.
    """
    linear, summed, wait = two.model.linear, two.model.summed, collectives.wait_tensor
    events, flying = list[str](), set[int]()

    def multiplied(x: Any, name: str) -> Any:
        events.append(name.removeprefix("layers."))
        return linear(x, name)

    def started(share: Any, late: bool = False) -> Any:
        events.append("sum" if late else "whole sum")
        made = summed(share, late)
        flying.update([made.elem.data_ptr()] if late else [])
        return made

    def waited(made: Any) -> Any:
        if made.data_ptr() in flying:
            events.append("wait")
            flying.remove(made.data_ptr())
        return wait(made)

    monkeypatch.setattr(two.model, "_first", first)
    monkeypatch.setattr(two.model, "linear", multiplied)
    monkeypatch.setattr(two.model, "summed", started)
    monkeypatch.setattr(collectives, "wait_tensor", waited)
    two.forward([span([0], PROMPT)])
    attention, feed = ("{}.q", "{}.k", "{}.v", "{}.o"), ("{}.up", "{}.gate", "{}.down")
    begin, *parts = [
        [name.format(layer) for name in part] for layer in range(3) for part in (attention, feed)
    ]
    wanted = [*begin, "sum"]
    for part in parts[:3]:
        wanted += [*part, "wait", "sum"]
    wanted += ["wait"]
    for part in parts[3:]:
        wanted += [*part, "whole sum"]
    assert events == wanted
    assert not flying
