"""The attention weights of requested rows equal those of an independent NumPy forward."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive import Naive, random_weights
from native_models import CONFIGS, make

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.layers import Half
from paradecode.models.config import ModelConfig
from spans import span

BACKENDS = ("native", "native-f16", "torch")
TOLERANCE = {"native": 1e-5, "native-f16": 2e-2, "torch": 1e-9}
ASKED = np.array([0, 10, 3], np.int32)


def opened(name: str, config: ModelConfig, **options: Any) -> Backend:
    if name == "torch":
        pytest.importorskip("torch")
        backend = open_backend("torch", config, random_weights(config), dtype="fp64", threads=1)
        backend.reserve(64)
        return backend
    return make(config, dtype="f32", kv_dtype="f16" if name == "native-f16" else "f32", **options)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("shape", CONFIGS)
def test_rows_behind_a_context(name: str, shape: str) -> None:
    config = CONFIGS[shape]
    rng = np.random.default_rng(1)
    tokens, pages = rng.integers(0, config.vocab_size, 41), rng.permutation(64)[:3]
    naive = Naive(config, random_weights(config))
    naive.logits(tokens)
    backend = opened(name, config)
    backend.forward([span(pages, tokens[:30])])
    (result,) = backend.forward([span(pages, tokens[30:], 30, attention=ASKED)])
    assert sorted(result.attention) == [*range(config.layers)]
    for layer, found in result.attention.items():
        part = config.stack[layer].attention
        assert part is not None
        assert found.shape == (3, part.heads, 41)
        assert found.dtype == np.float32
        assert np.abs(found - naive.shares[layer][30 + ASKED]).max() < TOLERANCE[name] + 1e-7
        whole = found.sum(-1)
        assert (whole < 1).all() if part.sinks else np.allclose(whole, 1, atol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("window", [0, 6])
def test_slots_a_tail_and_rows_that_are_not_stored(name: str, window: int) -> None:
    """Weights come for cached slots in order, then tail and new rows by position, tail first."""
    config = CONFIGS["grouped"].altered(sliding_window=window)
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, config.vocab_size, 15)
    positions = np.array([*range(10), 11, 12, 13, 10, 11])  # Ten cached, two of a tail, three new.
    sees = np.zeros((15, 15), bool)
    sees[:10, :10] = np.tri(10, dtype=bool)
    sees[10, [*range(10), 10]] = sees[11, [*range(10), 10, 11]] = True
    seen = [0, 2, 3, 7, 9]
    for row, others in ((12, [11, 12, 14]), (13, [13]), (14, [10, 13, 14])):
        sees[row, [*seen, *others]] = True
    naive = Naive(config, random_weights(config))
    naive.logits(tokens, positions=positions, seen=sees)
    backend = opened(name, config)
    pages = rng.permutation(64)[:2]
    backend.forward([span(pages, tokens[:10])])
    none = np.empty(0, np.int32)
    at = positions.astype(np.int32)
    backend.forward([
        span(pages, tokens[10:12], 10, positions=at[10:12], slots=np.array([20, 25], np.int32),
             mask=sees[10:12, 10:12], tail=none, tail_positions=none)
    ])  # fmt: skip
    (result,) = backend.forward([
        span(pages, tokens[12:], 10, positions=at[12:], slots=np.array([-1, 17, -1], np.int32),
             visible=np.array(seen, np.int32), tail=np.array([20, 25], np.int32),
             tail_positions=at[10:12], mask=sees[12:, 10:], attention=np.array([2, 1, 0], np.int32))
    ])  # fmt: skip
    columns = [*seen, 13, 10, 14, 11, 12]
    for layer, found in result.attention.items():
        wanted = naive.shares[layer][[14, 13, 12]][:, :, columns]
        assert np.abs(found - wanted).max() < TOLERANCE[name] + 1e-7


def test_asking_changes_no_bit_whatever_shares_the_forward() -> None:
    config = CONFIGS["grouped"]
    tokens = np.random.default_rng(3).integers(0, config.vocab_size, (2, 300))
    found = []
    for threads in (1, 2, 3):
        backend = make(config, dtype="q4", threads=threads)
        pages = np.arange(38).reshape(2, 19)
        plain = [span(p, t) for p, t in zip(pages, tokens)]
        asking = [replace(plain[0], attention=np.array([299, 7], np.int32)), plain[1]]
        before = [result.logits.numpy() for result in backend.forward(plain)]
        after = backend.forward(asking)
        (alone,) = backend.forward(asking[:1])
        assert all((a == b.logits.numpy()).all() for a, b in zip(before, after))
        assert after[1].attention == {}
        found += [after[0].attention, alone.attention]
    assert all((each[layer] == found[0][layer]).all() for each in found for layer in range(3))


def test_only_layers_whose_attention_runs_answer() -> None:
    for name in ("native", "torch"):
        backend = opened(name, CONFIGS["grouped"])
        asked = np.array([1], np.int32)
        layers = (Half(0, "mlp"), Half(2, "attention"), 1)
        (result,) = backend.forward([span([0], [1, 2, 3], layers=layers, attention=asked)])
        assert sorted(result.attention) == [1, 2]
        (result,) = backend.forward([span([0], [1, 2, 3], attention=asked[:0])])
        assert result.attention == {}
