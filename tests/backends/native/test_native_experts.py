"""Rectified experts are the dense formula bit by bit, and only those that rows reach are read."""

from __future__ import annotations

import numpy as np
import pytest
from native_models import stacked

from paradecode.backends.interface import SpanResult
from paradecode.backends.native.backend import NativeBackend, Traffic
from paradecode.models.config import ModelConfig
from paradecode.models.mixture import Mixture
from paradecode.models.parts import Feed, Layer
from paradecode.models.tiny import random_weights
from paradecode.models.weights import Tensor, Weights
from spans import span

EXPERTS, SIZE, TINY, LARGE = 24, 40, np.float32(2.0**-30), 2.0**19
RECTIFIED = stacked(
    Layer((Feed(0, mixture=Mixture(EXPERTS, EXPERTS, SIZE, score="relu"), gated=False),))
)
TOKENS = [*range(1, 41)]


def drawn() -> Weights:
    """Return random weights with tiny embeddings, which the norm's gain makes large."""
    weights = dict(random_weights(RECTIFIED, 3))
    for name, factor in (("embed", TINY), ("layers.0.mlp_norm", np.float32(2.0**20))):
        values = weights[name].float32() * factor
        weights[name] = Tensor(values, values.shape)
    return weights


def opened(config: ModelConfig, weights: Weights) -> NativeBackend:
    backend = NativeBackend(config, weights, dtype="f32", kv_dtype="f32")
    backend.reserve(4)
    return backend


def run(config: ModelConfig, weights: Weights, tokens: list[int], **asked: object) -> SpanResult:
    (out,) = opened(config, weights).forward([span(range(4), tokens, **asked)])
    return out


PLAIN = stacked(Layer((Feed(SIZE, gated=False),), factor=LARGE))
"""One expert alone: its layer multiplies the result by so much that no embedding is left in it."""


def alone(weights: Weights, expert: int) -> Weights:
    own = {f"layers.0.{p}": weights[f"layers.0.experts.{expert}.{p}"] for p in ("up", "down")}
    return {n: t for n, t in weights.items() if "experts" not in n and "router" not in n} | own


def routed(weights: Weights, tokens: list[int]) -> np.ndarray:
    """Return the router's logits [rows, EXPERTS]: it is the head of a model that feeds nothing."""
    head = np.zeros_like(weights["head"].data)
    head[:EXPERTS] = weights["layers.0.router"].data
    own = alone(weights, 0)
    down = np.zeros_like(own["layers.0.down"].data)
    bare = {"head": Tensor(head, head.shape), "layers.0.down": Tensor(down, down.shape)}
    after = {"norm": weights["layers.0.mlp_norm"]}
    return np.asarray(run(PLAIN, own | bare | after, tokens).logits.numpy()[:, :EXPERTS])


def dense(weights: Weights, tokens: list[int]) -> np.ndarray:
    """Return the layer's outputs [rows, D]: all experts are computed, and none is left out."""
    made = [
        run(PLAIN, alone(weights, expert), tokens, hidden=(0,)).hidden[0] / np.float32(LARGE)
        for expert in range(EXPERTS)
    ]
    gains = weights["layers.0.router.norm"].float32()
    sums = [
        summed(scores_of(logits, gains), made, row)
        for row, logits in enumerate(routed(weights, tokens))
    ]
    return weights["embed"].float32()[tokens] + np.array(sums)


def scores_of(logits: np.ndarray, gains: np.ndarray) -> list[float]:
    """Return the RMSNorm of the rectified logits of a row, in float64."""
    fired = [max(float(logit), 0.0) for logit in logits]
    root = np.sqrt(
        sum(one * one for one in fired) / EXPERTS + float(np.float32(RECTIFIED.norm_eps))
    )
    return [one / root * float(gain) for one, gain in zip(fired, gains, strict=True)]


def summed(scores: list[float], made: list[np.ndarray], row: int) -> np.ndarray:
    """Return the weighted sum of all experts in float32, the largest score first."""
    total = np.zeros(len(made[0][row]), np.float32)
    for expert in sorted(range(EXPERTS), key=lambda e: (-scores[e], e)):
        total = total + np.float32(scores[expert]) * made[expert][row]
    return total


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_outputs_are_those_of_the_dense_formula(rows: int) -> None:
    weights = drawn()
    wanted = dense(weights, TOKENS[:rows])
    found = run(RECTIFIED, weights, TOKENS[:rows], hidden=(0,)).hidden[0]
    assert wanted.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)


def traffic(config: ModelConfig, weights: Weights, rows: int) -> tuple[NativeBackend, Traffic]:
    backend, asked = opened(config, weights), [span(range(4), TOKENS[:rows])]
    backend.forward(asked)  # Its memory is there now.
    backend.traffic(True)
    backend.forward(asked)
    (one,) = backend.traffic(False)
    return backend, one


def test_only_experts_that_rows_reach_are_read_and_counted() -> None:
    weights = drawn()
    router = np.zeros_like(weights["layers.0.router"].data)
    closed = {**weights, "layers.0.router": Tensor(router, router.shape)}
    reached = np.logical_or.accumulate(routed(weights, TOKENS[:8]) > 0).sum(1)
    assert 0 < reached[0] < reached[-1] <= EXPERTS
    for rows in (1, 2, 4, 8):
        _, none = traffic(RECTIFIED, closed, rows)
        backend, seen = traffic(RECTIFIED, weights, rows)
        one = sum(backend._model().work_of(f"layers.0.experts.0.{p}")[0] for p in ("up", "down"))
        assert (none.experts, seen.experts) == (0, reached[rows - 1])
        assert seen.nbytes - none.nbytes == reached[rows - 1] * one


def test_experts_count_once_a_layer_and_shared_ones_do_not() -> None:
    _, many = traffic(RECTIFIED, drawn(), 40)  # Two lots of rows are sent.
    assert many.experts <= EXPERTS
    layer = Layer((Feed(0, mixture=Mixture(8, 2, 24, shared_size=16)),))
    config = stacked(layer, layer)
    _, one = traffic(config, random_weights(config), 1)
    assert one.experts == 4
