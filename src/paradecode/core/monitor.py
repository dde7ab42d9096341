"""Monitors: rules about a text that no grammar can state, because they depend on its meaning."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Monitor(Protocol):
    """Watches a text and says which names may follow (Agrawal et al. 2023, arXiv 2306.10763).

    A monitor is a function of the text: it has no state, so going back costs nothing. It works on
    bytes, because tokens may end in the middle of a character.
    """

    @property
    def triggers(self) -> frozenset[int]:
        """The bytes behind which :meth:`names` has something to say."""
        ...

    def names(self, text: bytes) -> Collection[bytes] | None:
        """What may follow ``text``, which ends with a trigger; None or nothing: anything may.

        After one of these names comes a byte that ends it, or the end of the text.
        """
        ...

    def ends(self, value: int) -> bool:
        """Whether a byte ends a name: it cannot be part of one."""
        ...
