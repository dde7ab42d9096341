"""Errors that a user can act on: each names the field, the value and the fix."""

from __future__ import annotations

from itertools import islice
from reprlib import Repr
from typing import Any

MOST_SHOWN, MOST_FIELD, MOST_FIX = 80, 200, 2000
"""Largest lengths, in characters, of a value, a field name and a fix in an error message."""


class ParadecodeError(Exception):
    """Base class of all exceptions that Paradecode raises on purpose."""


class InvalidInput(ParadecodeError, ValueError):
    """A value from outside (request, configuration, model file) that cannot be used.

    Args:
        field: dotted name of the offending field, as the user wrote it; shortened.
        value: the offending value; shortened in the message.
        fix: the accepted values, as an imperative sentence; shortened.
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field, self.value, self.fix = cut(field, MOST_FIELD), value, cut(fix, MOST_FIX)
        super().__init__(f"{self.field}: {_wrong(value)}; {self.fix}")


def _wrong(value: object) -> str:
    """Return the complaint about a value, without Python's own words such as None."""
    if value is None:
        return "nothing is given"
    if isinstance(value, (str, list, tuple, dict)) and not value:
        return "it is empty"
    return f"{shown(value)} is not usable"


def reason(error: Exception) -> str:
    """Return why a file could not be read or written, without the error number and the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error)


def cut(text: str, most: int) -> str:
    """Return the text, cut to at most ``most`` characters; a cut text ends with "..."."""
    return text if len(text) <= most else text[: most - 3] + "..."


class _Beginnings(Repr):
    """A ``repr`` that reads only the beginning of a value, to save memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 2 * MOST_SHOWN
        # More entries would not fit into a message.
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 30
        self.maxlevel = 1 << 20  # The same depth as ``repr``.

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Show the first keys in the dict's own order; the library's method would sort all keys."""
        if level <= 0:
            return "{...}"
        first = islice(x.items(), self.maxdict)
        pairs = (f"{self.repr1(key, level - 1)}: {self.repr1(v, level - 1)}" for key, v in first)
        return "{" + ", ".join(pairs) + "}"


_BEGINNINGS = _Beginnings()


def shown(value: object) -> str:
    """Return the value as error messages show it, cut to ``MOST_SHOWN`` characters."""
    try:
        return cut(_BEGINNINGS.repr(value), MOST_SHOWN)
    except (ValueError, RecursionError):  # Thousands of digits, or of nested lists.
        return f"this {type(value).__name__}"


class InvalidModel(InvalidInput):
    """A model file or folder is damaged, truncated or of an unknown kind."""


class DecoderError(ParadecodeError):
    """A decoder broke a rule of the engine (bad tree, bad slot, no progress)."""


class BackendError(ParadecodeError):
    """A forward pass failed or returned unusable numbers."""


class BackendLost(BackendError):
    """A backend can never run again: the model must be loaded anew."""


class CapacityError(ParadecodeError):
    """A resource of fixed size (KV pages, queue) has no room for the request."""
