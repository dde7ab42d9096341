"""The LSTM layer must give PyTorch's own numbers, and the gradients of a plain loop."""

import pytest

torch = pytest.importorskip("torch")

from paradecode_lab.training.heads.lstm import lstm_rows

D, TEXTS, ROWS = 5, 3, 7


def test_hidden_and_cells_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, D, batch_first=True)
    x, h, c = torch.randn(TEXTS, ROWS, 4), torch.randn(TEXTS, D), torch.randn(TEXTS, D)
    with torch.no_grad():
        given = x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0
        hidden, cells = lstm_rows(given, layer.weight_hh_l0, h, c)
        for rows in (1, 4, ROWS):
            theirs, (_, cell) = layer(x[:, :rows], (h[None], c[None]))
            assert torch.allclose(hidden[:, :rows], theirs, atol=1e-6)
            assert torch.allclose(cells[:, rows - 1], cell[0], atol=1e-6)


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(1)
    shapes = (TEXTS, ROWS, 4 * D), (4 * D, D), (TEXTS, D), (TEXTS, D)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lstm_rows, inputs)


def test_products_are_rounded_under_autocast_alone() -> None:
    torch.manual_seed(2)
    given, weight = torch.randn(TEXTS, ROWS, 4 * D), torch.randn(4 * D, D, requires_grad=True)
    none = torch.zeros(TEXTS, D)
    fine, _ = lstm_rows(given, weight, none, none)
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = lstm_rows(given, weight, none, none)
    assert rough.dtype == torch.float32
    assert 0 < (rough - fine).abs().max() < 0.1
    rough.sum().backward()
    assert weight.grad.dtype == torch.float32
