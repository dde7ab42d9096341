"""Strategies by name: the registry's kind ``search``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from paradecode.core.errors import InvalidInput
from paradecode.methods import parts
from paradecode.search.branch import Strategy


def strategies() -> Mapping[str, parts.Part]:
    """Every strategy: built in, or registered by the program."""
    parts.load_room(__name__.rpartition(".")[0])
    return parts.known("search")


WIDTHS = ("width", "n", "k", "calibration")
"""Settings that are numbers of branches."""


def widest(strategy: Strategy) -> int:
    """The most branches that a strategy begins at a time, by its settings."""
    given = vars(strategy)
    return max((int(given[name]) for name in WIDTHS if name in given), default=1)


def find_strategy(text: object, trusted: bool = True) -> Strategy:
    """The strategy that ``name`` or ``name(key=value, ...)`` describes.

    Args:
        trusted: False for a text from a request, which may not name files of this machine.

    Raises:
        InvalidInput: for a name or setting that is unknown or does not fit.
    """
    strategies()
    if not isinstance(text, str):
        raise InvalidInput("search", text, "give a text such as 'best-of(n=4)'")
    found, settings = parts.read("search", "search", text, trusted)
    return cast(Strategy, found.build(**settings))
