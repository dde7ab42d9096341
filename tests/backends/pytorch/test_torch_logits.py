"""Every method of TorchLogits agrees with ArrayLogits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from paradecode.backends.torch.backend import TorchLogits
from paradecode.core.errors import BackendError
from paradecode.core.logits import ArrayLogits, Warp
from tiers import examples

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
on_devices = pytest.mark.parametrize("device", DEVICES)
values = st.one_of(
    st.integers(-3, 3).map(float),  # Ties.
    st.floats(-20, 20, width=32),
    st.just(-np.inf),
)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Draw float32 rows [R, V]; every row has a finite value."""
    height, width = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    row = st.lists(values, min_size=width, max_size=width).filter(lambda r: np.isfinite(r).any())
    return np.array([draw(row) for _ in range(height)], np.float32)


def both(array: np.ndarray, device: str) -> tuple[ArrayLogits, TorchLogits]:
    return ArrayLogits(array.copy()), TorchLogits(torch.tensor(array, device=device))


@on_devices
@examples(60)
@given(array=rows(), k=st.integers(1, 12), data=st.data())
def test_every_method_agrees(device, array, k, data):
    one, other = both(array, device)
    height, width = one.shape
    assert other.shape == one.shape
    for name, exact in {"argmax": True, "log_normalizer": False, "margin": False,
                        "entropy": False}.items():  # fmt: skip
        a, b = getattr(one, name)(), getattr(other, name)()
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(b, a, rtol=0, atol=0 if exact else 1e-12, err_msg=name)
    for a, b in zip(one.top_k(k), other.top_k(k), strict=True):
        assert a.dtype == b.dtype
        assert a.tolist() == b.tolist()
    ids = np.array(data.draw(st.lists(st.integers(0, width - 1), min_size=1, max_size=3)))
    ids = np.tile(ids, (height, 1)).astype(np.int32)
    assert one.gather(ids).tolist() == other.gather(ids).tolist()
    assert one.gather(ids).dtype == other.gather(ids).dtype
    np.testing.assert_allclose(other.log_probability(ids), one.log_probability(ids), atol=1e-12)
    order = data.draw(st.lists(st.integers(0, height - 1), max_size=4))
    assert other.select(order).values.tolist() == one.select(order).values.tolist()
    keys = list(range(height))
    for warp in (Warp(), Warp(0.7), Warp(1.0, top_k=3), Warp(1.3, 0, 0.8, 0.1)):
        assert other.sample(warp, keys).tolist() == one.sample(warp, keys).tolist()
        assert other.probabilities(warp).tolist() == one.probabilities(warp).tolist()


@on_devices
@given(array=rows(), data=st.data())
def test_bias_agrees_and_leaves_the_original_alone(device, array, data):
    one, other = both(array, device)
    biases = []
    for _ in range(len(array)):
        ids = data.draw(st.lists(st.integers(0, array.shape[1] - 1), max_size=3, unique=True))
        added = [data.draw(values) for _ in ids]
        bias = (np.array(ids, np.int32), np.array(added, np.float32))
        biases.append(data.draw(st.sampled_from([None, bias])))
    assert other.with_bias(biases).values.tolist() == one.with_bias(biases).values.tolist()
    assert other.values.tolist() == one.values.tolist() == array.tolist()
    with pytest.raises(ValueError, match="zip"):
        other.with_bias([*biases, None])


@on_devices
def test_a_large_row_of_ties(device):
    one, other = both(np.zeros((2, 50_000), np.float32), device)
    assert other.argmax().tolist() == [0, 0]
    assert other.top_k(5)[0].tolist() == one.top_k(5)[0].tolist() == [[0, 1, 2, 3, 4]] * 2


@on_devices
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unusable_rows_are_errors(device, bad):
    array = np.zeros((2, 5), np.float32)
    array[1, 3] = bad
    logits = both(array, device)[1]
    with pytest.raises(BackendError):
        logits.argmax()
    with pytest.raises(BackendError):
        logits.sample(Warp(1.0), [0, 1])
    if np.isnan(bad):
        with pytest.raises(BackendError):
            logits.top_k(2)
    with pytest.raises(BackendError):
        both(np.full((1, 3), -np.inf, np.float32), device)[1].argmax()
