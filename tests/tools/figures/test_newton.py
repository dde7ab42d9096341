"""Newton's iteration gives the states of PyTorch's GRU, and an iteration less does not."""

from __future__ import annotations

import numpy as np
import pytest

from tools.figures.newton import NEAR, drawn, errors, iterate, loop

torch = pytest.importorskip("torch")


def test_newton_is_the_recurrence_and_an_iteration_less_is_wrong() -> None:
    rows, units = 40, 8
    x, inner = drawn(rows, units, 1.0)
    gru = torch.nn.GRU(3 * units, units, bias=False, dtype=torch.float64)
    with torch.no_grad():
        gru.weight_ih_l0.copy_(torch.eye(3 * units))
        gru.weight_hh_l0.copy_(torch.cat([torch.diag(torch.from_numpy(each)) for each in inner]))
        wanted = gru(torch.from_numpy(x.reshape(rows, -1)))[0].numpy()
    np.testing.assert_allclose(loop(x, inner), wanted, atol=1e-12)
    found = errors(x, inner)
    assert len(found) < rows / 3
    for _, guess in zip(found, iterate(x, inner), strict=False):
        last = guess
    np.testing.assert_allclose(last, wanted, atol=NEAR)
    assert found[-2] > 10 * NEAR
    # Without derivatives an iteration makes one more row right.
    assert len(errors(x, inner, newton=False)) > len(found)
