"""Show a progress bar while a model is loaded or a batch is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

SOON = 1.0
"""Seconds after which a bar is shown; what takes less needs none."""

Tick = Callable[[int, int], None]
"""Called with the amount that is done, and with the whole amount."""


@contextmanager
def ticking(progress: Tick | bool, title: str, bytes: bool = False) -> Iterator[Tick]:
    """Yield a function that reports progress: the caller's own, or one that moves a bar.

    Args:
        progress: a function; True for a bar on standard error, which notebooks show, too, if the
            work takes over a second; or False for nothing.
        title: text beside the bar.
        bytes: whether the amounts are bytes.
    """
    if callable(progress):
        yield progress
        return
    from tqdm import tqdm

    unit = {"unit": "B", "unit_scale": True} if bytes else {}
    with tqdm(desc=title, disable=not progress, leave=False, delay=SOON, **unit) as bar:

        def tick(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield tick
