"""DFlash2's convolution: a row of a block is mixed with the rows before it, by weights of its own.

A kernel has a learned base for each number, and an amount that the row adds for each group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.models.heads.layouts import HeadFile
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder


@dataclass(frozen=True)
class BlockConvolution:
    """The two convolutions around a layer's attention or MLP, one before it and one after it.

    Attributes:
        base: float32 [2, taps, width].
        projection: [2 * taps * groups, width], which makes a row's own amounts.
    """

    base: NDArray[Any]
    projection: NDArray[Any]

    @staticmethod
    def of(file: HeadFile, t: HeadTensors, name: str, width: int) -> BlockConvolution | None:
        """Read the convolutions with this name; None if the head has none."""
        if not file.taps_behind:
            return None
        if width % file.group:
            raise InvalidModel("conv_group_size", file.group, f"it must divide {width}")
        rows = 2 * file.taps_behind * (width // file.group)
        return BlockConvolution(
            t(f"{name}.base_kernel", 2, file.taps_behind, width),
            t(f"{name}.kernel_projection.weight", rows, width),
        )

    @property
    def added(self) -> int:
        """The number of amounts that one of the two convolutions adds."""
        return len(self.projection) // 2

    def before(self, steps: NetworkBuilder, x: str) -> tuple[str, str]:
        """Add the first convolution, of x; return its result and the amounts of the second."""
        made = steps.linear(x, self.projection)
        amounts = [steps.part(made, side * self.added, self.added) for side in range(2)]
        return self._mixed(steps, x, amounts[0], 0), amounts[1]

    def after(self, steps: NetworkBuilder, x: str, amounts: str) -> str:
        """Add the second convolution, of x."""
        return self._mixed(steps, x, amounts, 1)

    def _mixed(self, steps: NetworkBuilder, x: str, amounts: str, side: int) -> str:
        taps, width = self.base[side].shape
        groups = self.added // taps
        spread = np.repeat(np.eye(groups, dtype=np.float32), width // groups, axis=0)
        out = ""
        for tap in range(taps):
            x = steps.add("behind", x) if tap else x
            each = steps.linear(steps.part(amounts, tap * groups, groups), spread)
            term = steps.add("multiply", x, steps.add("shift", each, tensor=self.base[side, tap]))
            out = steps.add("add", out, term) if out else term
        return out
