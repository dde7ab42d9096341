"""Muon (Jordan et al. 2024): each update is the momentum, made orthogonal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly orthogonal matrices close to [N, R, C], by five Newton-Schulz steps.

    Their singular values are between about 0.7 and 1.2, which is good enough for an update.
    """
    x = matrices.bfloat16()
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """The optimiser of the matrices between embedding and head.

    Args:
        parameters: matrices [R, C]; matrices of one shape are updated together.
        lr: size of an update; it is multiplied by sqrt(R / C) for tall matrices.
        momentum: momentum of the Nesterov average of gradients.
        weight_decay: decoupled decay, relative to ``lr``.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        groups = [{"params": same} for same in by_shape.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            parameters, beta = group["params"], group["momentum"]
            updates = []
            for parameter in parameters:
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"].lerp_(parameter.grad, 1 - beta)
                updates.append(parameter.grad.lerp(average, beta))
            rows, columns = parameters[0].shape
            scale = group["lr"] * max(1, rows / columns) ** 0.5
            for parameter, update in zip(parameters, orthogonal(torch.stack(updates))):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-scale)
