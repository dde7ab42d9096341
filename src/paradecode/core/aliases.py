"""Settings under the names that other engines and the models' own scripts give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from paradecode.core.errors import InvalidInput

T = TypeVar("T")


def own_names(values: Mapping[str, T], names: Mapping[str, str], where: str = "") -> dict[str, T]:
    """``values`` under our names, in their order.

    Args:
        names: other names -> ours. What is in neither is kept as it is.
        where: what errors say before a name, ``static.`` for instance.

    Raises:
        InvalidInput: if one setting is given under two names, be it with equal values.
    """
    own: dict[str, T] = {}
    said: dict[str, str] = {}
    for name, value in values.items():
        ours = names.get(name, name)
        if ours in said:
            fix = f"it is {said[ours]} under another name: give one of them"
            raise InvalidInput(f"{where}{name}", value, fix)
        own[ours], said[ours] = value, name
    return own
