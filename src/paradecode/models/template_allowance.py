"""The allowance of a template's rendering: time, and the size of the values that it makes.

Every step takes a part of one allowance. A value takes its own size when it is made. Before a value
is written, compared or sorted, the size of everything inside it is taken, too. The code calls this
"to pay".
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.runtime import LoopContext
from jinja2.sandbox import SecurityError
from jinja2.utils import Namespace

SECONDS = 5.0
MAX_VALUE = 1 << 23
MAX_TOTAL = 1 << 26
STEP = 32
ENTRY = 64
"""Cost of an entry of a list or an object, in characters: it may be a short text of its own."""
MAX_BITS = 1 << 12
"""Largest number of bits of a whole number. It takes minutes to divide very long ones."""


class _Allowance:
    """The remaining time and size that one rendering may use."""

    def __init__(self) -> None:
        self.left = MAX_TOTAL
        self.deadline = time.monotonic() + SECONDS

    def pay(self, size: int) -> None:
        self.left -= size + STEP
        if size > MAX_VALUE or self.left < 0:
            raise SecurityError("the template makes too much text or too many steps")
        if time.monotonic() > self.deadline:
            raise SecurityError("the template takes too long")


_allowance: ContextVar[_Allowance] = ContextVar("template_allowance")


@contextmanager
def allowance() -> Iterator[None]:
    """Limit compiling and rendering inside the block; SecurityError is raised at the limit."""
    token = _allowance.set(_Allowance())
    try:
        yield
    finally:
        _allowance.reset(token)


def pay(size: int) -> None:
    """Use up one step and ``size`` characters."""
    _allowance.get().pay(size)


def steps(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values, and pay for each step."""
    for value in values:
        pay(0)
        yield value


def size_of(value: Any) -> int:
    """Return the cost of a value by itself. Raises SecurityError for a number that is too long."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SecurityError("the number is too large")
    return ENTRY * len(value) if isinstance(value, (list, tuple, dict)) else 0


def measured(value: Any) -> Any:
    """Pay for a new value by itself, and return it."""
    pay(size_of(value))
    return value


def weighed(value: Any) -> Any:
    """Pay for a value with everything inside it, and return the value.

    Shared values count as often as they occur: ``a = [a, a]`` forty times takes little memory, but
    writing or comparing it would never end. An iterator, which can be read only once, becomes a
    list.
    """
    if isinstance(value, Iterator) and not isinstance(value, LoopContext):
        value = list(steps(value))
    pending = [value]
    while pending:
        inner = pending.pop()
        pay(len(inner) if isinstance(inner, (str, bytes)) else 0)
        if isinstance(inner, dict):
            pending += [*inner, *inner.values()]
        elif isinstance(inner, (list, tuple, KeysView, ValuesView, ItemsView)):
            pending += inner
        elif isinstance(inner, Namespace):
            # It can contain itself.
            raise SecurityError("a namespace is no value; name one of its attributes")
    return value
