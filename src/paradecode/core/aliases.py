"""Other names of settings, from other engines and the models' own scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from paradecode.core.errors import InvalidInput

T = TypeVar("T")


def own_names(values: Mapping[str, T], names: Mapping[str, str], where: str = "") -> dict[str, T]:
    """The values under our names, in the same order.

    Args:
        names: other names -> ours; all other names stay as they are.
        where: prefix of names in errors, for example ``static.``.

    Raises:
        InvalidInput: if a setting is given under two names, even with equal values.
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
