"""The PyTorch backend with other precisions and devices, refused settings, and closing."""

from dataclasses import replace

import numpy as np
import pytest
from naive import random_weights

torch = pytest.importorskip("torch")

from house import CONFIGS, TREE, House, causal, ints, paths_of

from paradecode.backends.interface import Span
from paradecode.backends.torch.backend import TorchBackend
from paradecode.core.errors import InvalidInput, InvalidModel


@pytest.mark.parametrize(("dtype", "bound"), [("fp32", 1e-4), ("bf16", 1.0)])
def test_lower_precisions(dtype, bound):
    house = House(CONFIGS["plain"], dtype=dtype)
    text = house.text(40)
    pages = house.pages(40)
    parts = [house.run(causal(pages, text, a, b))[0] for a, b in ((0, 25), (25, 40))]
    got, expected = np.concatenate(parts), house.naive.logits(text)
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    error = np.abs(got - expected)
    assert 0 < error.mean() < bound * 0.2
    correlation = np.corrcoef(got.ravel(), expected.ravel())[0, 1]
    assert correlation > 0.99


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp64", 1e-9), ("fp32", 1e-3)])
def test_cuda(dtype, tolerance):
    house = House(CONFIGS["everything"], dtype=dtype, device="cuda")
    text = house.text(40)
    pages = house.pages(64)
    house.prefill(pages, text)
    span = Span(
        pages=pages, tokens=TREE.tokens, positions=39 + TREE.depths,
        slots=np.arange(40, 47, dtype=np.int32), context=40,
        logits=np.arange(len(TREE), dtype=np.int32), mask=TREE.visibility,
    )  # fmt: skip
    got = house.backend.forward([span])[0].logits.values.cpu().numpy()
    expected = [house.naive.logits([*text, *path])[-1] for path in paths_of(TREE)]
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named():
    config = CONFIGS["plain"]
    with pytest.raises(InvalidInput, match="device"):
        TorchBackend(config, random_weights(config), device="cuda")


def test_bad_models_are_refused():
    config = CONFIGS["plain"]
    weights = dict(random_weights(config))
    with pytest.raises(InvalidInput, match="dtype"):
        TorchBackend(config, weights, dtype="int4")
    short = {name: tensor for name, tensor in weights.items() if name != "layers.1.up"}
    with pytest.raises(InvalidModel, match=r"layers\.1\.up"):
        TorchBackend(config, short)
    with pytest.raises(InvalidModel, match="embed"):
        TorchBackend(config, weights | {"embed": weights["norm"]})


def test_a_row_that_sees_nothing_is_an_error():
    house = House(CONFIGS["plain"])
    span = replace(causal(house.pages(2), house.text(2), 0, 2), mask=np.zeros((2, 2), bool))
    with pytest.raises(InvalidInput, match="mask"):
        house.run(span)


def test_closed_backends_hold_nothing():
    house = House(CONFIGS["plain"])
    house.backend.close()
    with pytest.raises(InvalidInput, match="pages"):
        house.run(causal(ints([0]), house.text(2), 0, 2))
