"""The strategies (the registry's kind `search`), and the look-up of a strategy by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from paradecode.core.errors import InvalidInput
from paradecode.methods import parts
from paradecode.search.branch import Strategy


def strategies() -> Mapping[str, parts.Part]:
    """Return all strategies by name: built-in ones, and ones that the program has registered."""
    parts.load_room(__name__)
    return parts.known("search")


WIDTHS = ("width", "n", "k", "calibration")
"""Names of settings whose values are numbers of branches."""


def widest(strategy: Strategy) -> int:
    """Return the most branches that a strategy begins at a time with its settings."""
    given = vars(strategy)
    return max((int(given[name]) for name in WIDTHS if name in given), default=1)


def find_strategy(text: object, trusted: bool = True) -> Strategy:
    """Return the strategy for a text ``name`` or ``name(key=value, ...)``.

    Args:
        trusted: False if ``text`` comes from a request, which may not name files of this machine.

    Raises:
        InvalidInput: if a name or setting is unknown, or a setting is out of bounds.
    """
    strategies()
    if not isinstance(text, str):
        raise InvalidInput("search", text, "give a text such as 'best-of(n=4)'")
    found, settings = parts.read("search", "search", text, trusted)
    return cast(Strategy, found.build(**settings))
