"""The logits protocol on a device: only small results are copied to the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paradecode.core.errors import BackendError
from paradecode.core.logits import ArrayLogits, Bias, Warp


class TorchLogits:
    """Rows of logits [R, V] on a torch device (see :class:`paradecode.core.logits.Logits`)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def select(self, rows: Sequence[int]) -> TorchLogits:
        return TorchLogits(self.values[list(rows)])

    def with_bias(self, biases: Sequence[Bias | None]) -> TorchLogits:
        values = self.values.clone()
        for row, bias in zip(values, biases, strict=True):
            if bias is not None:
                ids = torch.from_numpy(bias[0].astype(np.int64)).to(values.device)
                row[ids] += torch.from_numpy(bias[1]).to(values.device, values.dtype)
        return TorchLogits(values)

    def tempered(self, temperature: float) -> TorchLogits:
        return TorchLogits(self.values / temperature)

    def argmax(self) -> NDArray[np.int32]:
        top = self.values.max(dim=1, keepdim=True).values
        if not torch.isfinite(top).all():
            raise BackendError("the model returned logits that are NaN or infinite")
        # torch does not say which of several maxima it returns; the protocol wants the first.
        first = (self.values == top).to(torch.uint8).argmax(dim=1)
        return first.to(torch.int32).cpu().numpy()

    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        k = min(k, self.shape[1])
        values, ids = torch.sort(self.values, dim=1, descending=True, stable=True)
        if values[:, :1].isnan().any():  # NaN is the greatest to torch.sort.
            raise BackendError("the model returned logits that are NaN")
        return ids[:, :k].int().cpu().numpy(), values[:, :k].float().cpu().numpy()

    def gather(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._at(ids).float().cpu().numpy()

    def log_normalizer(self) -> NDArray[np.float64]:
        return torch.logsumexp(self.values.double(), dim=1).cpu().numpy()

    def log_probability(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        return self._at(ids).double().cpu().numpy() - self.log_normalizer()[:, None]

    def margin(self) -> NDArray[np.float64]:
        p = torch.softmax(self.values.double(), dim=1).topk(min(2, self.shape[1]), dim=1).values
        return (p[:, 0] - p[:, 1] if p.shape[1] > 1 else p[:, 0]).cpu().numpy()

    def entropy(self) -> NDArray[np.float64]:
        return torch.special.entr(torch.softmax(self.values.double(), dim=1)).sum(1).cpu().numpy()

    def probabilities(self, warp: Warp) -> NDArray[np.float64]:
        return self._host().probabilities(warp)

    def sample(self, warp: Warp, keys: Sequence[int]) -> NDArray[np.int32]:
        # The noise is defined by NumPy's 64-bit arithmetic; one copy of R rows keeps it one rule.
        return self.argmax() if warp.temperature == 0.0 else self._host().sample(warp, keys)

    def _at(self, ids: NDArray[np.integer]) -> Tensor:
        index = torch.from_numpy(ids.astype(np.int64)).to(self.values.device)
        return torch.gather(self.values, 1, index)

    def _host(self) -> ArrayLogits:
        return ArrayLogits(self.values.cpu().numpy())
