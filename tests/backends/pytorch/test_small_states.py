"""Cells are those of PyTorch's GRU and LSTM, and of xLSTM's formula in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Span, StatePages, WindowPages
from paradecode.backends.native.backend import NativeBackend
from paradecode.backends.torch.backend import TorchBackend
from paradecode.models.config import ModelConfig
from paradecode.models.parts import Layer
from paradecode.models.small_states import Cells
from paradecode.models.weights import Tensor

ROWS, WIDTH, UNITS = 37, 24, 12
PAGES = np.arange(-(-ROWS // PAGE), dtype=np.int32)
TOKENS = np.random.default_rng(2).integers(0, 40, ROWS).astype(np.int32)
Values = dict[str, NDArray[np.float32]]


def torch_cell(kind: Any) -> Callable[[Values, Any], Any]:
    def run(w: Values, x: Any) -> Any:
        module = kind(WIDTH, UNITS, batch_first=True, dtype=torch.float64)
        names = {"weight_ih_l0": "cell_in", "weight_hh_l0": "cell_inner",
                 "bias_ih_l0": "cell_in.bias", "bias_hh_l0": "cell_inner.bias"}  # fmt: skip
        with torch.no_grad():
            for name, own in names.items():
                target = getattr(module, name)
                target.copy_(torch.from_numpy(w[f"layers.0.{own}"].reshape(target.shape)))
            return module(x[None])[0][0]

    return run


def slstm(w: Values, x: Any) -> Any:
    """The formula of arXiv 2405.04517, equations 8 to 15, with two heads."""
    h = c = n = np.zeros(UNITS)
    out = []
    inner = w["layers.0.cell_inner"].astype(np.float64).reshape(4, 2, UNITS // 2, UNITS // 2)
    for row in x.numpy() @ w["layers.0.cell_in"].T.astype(np.float64):
        recurrent = np.einsum("ghpq,hq->ghp", inner, h.reshape(2, -1)).reshape(4, -1)
        i, f, z, o = row.reshape(4, -1) + recurrent + sum(
            w[f"layers.0.{name}.bias"].reshape(4, -1) for name in ("cell_in", "cell_inner")
        )  # fmt: skip
        c = c / (1 + np.exp(-f)) + np.exp(i) * np.tanh(z)
        n = n / (1 + np.exp(-f)) + np.exp(i)
        h = c / n / (1 + np.exp(-o))
        out.append(h)
    return torch.from_numpy(np.stack(out))


CELLS = {
    "gru": (Cells(1, UNITS, "gru", "none", bias=True), torch_cell(torch.nn.GRU)),
    "lstm": (Cells(1, UNITS, "lstm", "none", bias=True), torch_cell(torch.nn.LSTM)),
    "slstm": (Cells(2, UNITS // 2, "slstm", "none", bias=True), slstm),
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_is_that_of_its_oracle(cell: str) -> None:
    part, oracle = CELLS[cell]
    config = ModelConfig("x", "x", 40, WIDTH, (Layer((part,)),), 512)
    random = np.random.default_rng(1)
    w = {name: random.standard_normal(shape, np.float32) / shape[-1] ** 0.25
         for name, shape in config.tensors().items()}  # fmt: skip
    w["layers.0.cell_inner"] = random.standard_normal(w["layers.0.cell_inner"].shape, np.float32)
    weights = {name: Tensor(values, values.shape) for name, values in w.items()}
    x = torch.from_numpy(w["embed"][TOKENS].astype(np.float64))
    h = oracle(w, x).numpy()
    y = x.numpy() + h @ w["layers.0.cell_o"].T
    y = y / np.sqrt((y**2).mean(1, keepdims=True) + config.norm_eps) * w["norm"]
    wanted = y @ w["head"].T
    every = np.arange(ROWS, dtype=np.int32)
    span = Span(
        pages=PAGES, tokens=TOKENS, positions=every, slots=every, context=0, logits=every,
        states=StatePages(WindowPages(0, PAGES), 0, -1),
    )  # fmt: skip
    native = NativeBackend(config, weights, dtype="f32")
    for backend, near in ((TorchBackend(config, weights, dtype="fp64"), 1e-6), (native, 1e-5)):
        backend.reserve(len(PAGES))
        backend.reserve_states(len(PAGES), 1)
        logits = backend.forward([span])[0].logits
        found = logits.gather(np.tile(np.arange(40), (ROWS, 1)))
        assert np.abs(found - wanted).max() < near * np.abs(wanted).max()
