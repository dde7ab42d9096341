"""Tiny models are complete and reproducible, and their logits have the requested sharpness."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.models.tiny import KINDS, tiny_checkpoint
from paradecode.models.weights import Kind, check_weights


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [Kind.F32, Kind.F16, Kind.BF16])
def test_complete_and_reproducible(kind, dtype):
    config, weights = tiny_checkpoint(kind, 3, dtype)
    check_weights(config, weights)
    assert weights.keys() == config.tensors().keys()
    assert weights["layers.0.q"].kind == dtype
    again = tiny_checkpoint(kind, 3, dtype)[1]
    other = tiny_checkpoint(kind, 4, dtype)[1]
    exact = tiny_checkpoint(kind, 3)[1]
    for name, tensor in weights.items():
        np.testing.assert_array_equal(tensor.data, again[name].data)
        assert not np.array_equal(tensor.data, other[name].data)
        np.testing.assert_allclose(tensor.float32(), exact[name].float32(), rtol=1e-2, atol=1e-3)


def test_the_same_bits_everywhere():
    data = tiny_checkpoint("llama", 0)[1]["layers.1.down"].data
    assert hashlib.sha256(data.tobytes()).hexdigest()[:16] == "6298c22756c2c436"


@pytest.mark.parametrize("kind", KINDS)
def test_near_ties(kind):
    config, weights = tiny_checkpoint(kind, near_tie=True)
    head = weights["embed" if config.tied_head else "head"].float32()
    logits = np.random.default_rng(0).standard_normal((200, config.hidden_size)) @ head.T
    best = np.sort(logits, axis=1)[:, -2:]
    assert (best[:, 1] - best[:, 0] < 1e-4).all()
    assert logits.std() > 1


def test_unknown_kinds():
    for arguments in ({"kind": "gpt"}, {"dtype": Kind.Q4_0}):
        with pytest.raises(InvalidInput, match="use"):
            tiny_checkpoint(**arguments)
