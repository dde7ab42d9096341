"""Small trained networks as data that every backend can run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput

Array = NDArray[np.float32]
Item = Mapping[str, NDArray[Any]]
"""The inputs of one run of a network: name -> float32 [n, width], or whole numbers [n]."""

SHAPES: Mapping[str, tuple[int, int]] = {
    "linear": (1, 1), "standardise": (1, 2), "scale": (1, 1), "shift": (1, 1), "lookup": (1, 1),
    "relu": (1, 0), "silu": (1, 0), "sigmoid": (1, 0), "gelu": (1, 0), "rms": (1, 0),
    "centre": (1, 0), "add": (2, 0), "multiply": (2, 0), "divide": (2, 0), "join": (0, 0),
    "attention": (5, 0), "part": (1, 0), "behind": (1, 0),
}  # fmt: skip
"""Kind of operation -> its numbers of values (0: any number) and of tensors."""

KINDS = tuple(SHAPES)


@dataclass(frozen=True)
class Op:
    """One operation of a network: it computes the value ``out`` from earlier values.

    The kinds, for values x and y and tensors w and v:

    - ``linear``: x @ w, with w [inputs, outputs]; ``standardise``: (x - w) * v; ``scale``: x * w;
      ``shift``: x + w; ``lookup``: the rows of w [rows, width] whose indices are the whole numbers
      x.
    - ``relu``, ``silu``, ``sigmoid``, ``gelu`` (tanh approximation); ``rms``: one number for each
      row, sqrt(mean(x^2) + ``number``); ``centre``: x - mean(x).
    - ``add``, ``multiply``, ``divide``: x and y, where y may have one number for each row;
      ``join``: the values, concatenated; ``part``: ``count`` numbers of each row of x, starting at
      index ``number``; ``behind``: for each row of an item, the row before it, and 0 for the first.
    - ``attention``: softmax attention of queries, keys and values with ``count`` heads. The whole
      numbers ``positions`` rotate queries and keys with the rotary base ``number``. The fifth value
      has a whole number for each row: a row attends to the rows of its item whose number is at most
      its own.
    """

    out: str
    kind: str
    values: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    count: int = 0
    number: float = 0.0


@dataclass(frozen=True, eq=False)
class Network:
    """A network: steps that compute named values; the value of the last step is the result.

    Rows do not depend on one another, except in ``attention`` and ``behind``, within an item.

    Args:
        inputs: name -> numbers in a row, or 0 for whole numbers [n].
        steps: the steps, in order.
        tensors: float32, by the names that steps use.
        dtype: ``q8`` or ``q4`` allows a backend to store matrices in 8 or 4 bits, and to round
            their inputs. Use it only for results that affect nothing but speed. ``f32`` forbids it.

    Attributes:
        widths: name of each value -> numbers in a row (0 for whole numbers).

    Raises:
        InvalidInput: if the sizes do not fit together.
    """

    inputs: Mapping[str, int]
    steps: tuple[Op, ...]
    tensors: Mapping[str, Array]
    dtype: str = "f32"
    widths: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        widths = dict(self.inputs)
        for step in self.steps:
            try:
                width = _width(step, [widths[v] for v in step.values], self._shapes(step))
            except KeyError as error:
                raise InvalidInput("network", step.out, f"there is no {error} before it") from None
            if width is None or step.out in widths:
                raise InvalidInput("network", step.out, f"the sizes of this {step.kind} do not fit")
            widths[step.out] = width
        if not self.steps:
            raise InvalidInput("network", "no steps", "give at least one")
        object.__setattr__(self, "widths", widths)

    def _shapes(self, step: Op) -> list[tuple[int, ...]]:
        return [self.tensors[name].shape for name in step.tensors]

    def check(self, item: Item) -> None:
        """Raise InvalidInput if an item does not have exactly the inputs, of equal length."""
        rows = {len(array) if np.ndim(array) else -1 for array in item.values()}
        if set(item) != set(self.inputs) or len(rows) != 1 or -1 in rows:
            fix = f"give as many rows of each of {', '.join(self.inputs)}"
            raise InvalidInput("inputs of a network", sorted(item), fix)
        for name, width in self.inputs.items():
            array = item[name]
            kinds, shape = ("iu", ()) if width == 0 else ("f", (width,))
            if array.dtype.kind not in kinds or array.shape[1:] != shape:
                fix = f"give whole numbers [n] or numbers [n, {width}]"
                raise InvalidInput(f"network input {name}", array.shape, fix)
        for step in self.steps:
            if step.kind == "lookup" and step.values[0] in item:
                ids, most = item[step.values[0]], len(self.tensors[step.tensors[0]])
                if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < most:
                    raise InvalidInput(step.values[0], int(ids.max()), f"give numbers below {most}")


def _width(step: Op, widths: list[int], shapes: list[tuple[int, ...]]) -> int | None:
    """Return how many numbers a row of the operation's result has; None if the sizes do not fit."""
    kind, first = step.kind, widths[0] if widths else 0
    wanted = SHAPES.get(kind)
    if wanted is None or len(shapes) != wanted[1] or (wanted[0] and len(widths) != wanted[0]):
        return None
    if not math.isfinite(step.number):
        return None
    if kind == "lookup":
        return shapes[0][1] if first == 0 and len(shapes[0]) == 2 and min(shapes[0]) else None
    if kind == "attention":
        fits = widths == [first] * 3 + [0, 0] and step.count > 0 and step.number > 0
        return first if fits and first and first % (2 * step.count) == 0 else None
    if kind == "join":
        return sum(widths) or None if 0 not in widths else None
    if first == 0:
        return None
    if kind == "part":
        begin, end = step.number, step.number + step.count
        return step.count if 0 <= begin < end <= first and begin == int(begin) else None
    if kind == "linear":
        fits = len(shapes[0]) == 2 and shapes[0][0] == first
        return shapes[0][1] or None if fits else None
    if any(shape != (first,) for shape in shapes) or widths[-1] not in (1, first):
        return None
    return 1 if kind == "rms" else first
