"""Checks of values from outside: requests, settings, files, messages.

A check is a function of a field's name and a value. It returns the value, or raises
:class:`InvalidInput` with the name, the value and the accepted values::

    whole(1, 64)("batch", 0)
    # InvalidInput: batch: 0 is not usable; give a whole number from 1 to 64
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import MOST_SHOWN, InvalidInput, reason

Check = Callable[[str, Any], Any]


def is_whole(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer; booleans are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a Python or NumPy number; booleans are not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


# One value.


def anything(name: str, value: Any) -> Any:
    """Accept any value."""
    return value


def flag(name: str, value: Any) -> bool:
    """Accept true and false only."""
    if not isinstance(value, bool):
        raise InvalidInput(name, value, "give true or false")
    return value


def whole(low: int | None = None, high: int | None = None) -> Check:
    """Make a check that accepts whole numbers from ``low`` to ``high``, both included.

    The check returns an int.
    """
    fix = f"give a whole number{_range(low, high)}"

    def check(name: str, value: Any) -> int:
        if not is_whole(value) or not _inside(value, low, high):
            raise InvalidInput(name, value, fix)
        return int(value)

    return check


def number(low: float | None = None, high: float | None = None, above: bool = False) -> Check:
    """Make a check that accepts finite numbers from ``low`` to ``high``, both included.

    The check returns a float.

    Args:
        above: True refuses ``low`` itself.
    """
    fix = f"give {'a number' if high is not None else 'a finite number'}"
    fix += f" above {low:g} and up to {high:g}" if above else _range(low, high)

    def check(name: str, value: Any) -> float:
        # Compared before the conversion, because a large whole number would overflow.
        right = is_number(value) and _inside(value, low, high) and not (above and value == low)
        if not right or not (isinstance(value, int) or math.isfinite(value)):
            raise InvalidInput(name, value, fix)
        try:
            return float(value)
        except OverflowError:
            raise InvalidInput(name, value, fix) from None

    return check


def text(most: int, least: int = 0) -> Check:
    """Make a check that accepts texts of ``least`` to ``most`` characters."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidInput(name, value, "give a text")
        if not least <= len(value) <= most:
            size = value and f"{len(value)} characters"
            raise InvalidInput(name, size, f"give a text of {least} to {most} characters")
        return value

    return check


def one_of(*values: Any) -> Check:
    """Make a check that accepts only the given texts or whole numbers."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in values:
            raise InvalidInput(name, value, meant(value, values))
        return value

    return check


# Values made of values.


def indices(name: str, value: Any) -> NDArray[np.int32]:
    """Accept a vector or list of whole numbers that fit into 32 bits; return it as int32 [n]."""
    fix = "give a vector of whole numbers of 32 bits"
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # Lists of different lengths.
        raise InvalidInput(name, value, fix) from None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InvalidInput(name, value, fix)
    most = np.iinfo(np.int32).max
    if array.dtype != np.int32 and len(array) and not -most <= array.min() <= array.max() <= most:
        raise InvalidInput(name, value, fix)
    return array.astype(np.int32, copy=False)


def maybe(check: Check) -> Check:
    """Make a check that accepts None and every value that ``check`` accepts."""
    return lambda name, value: None if value is None else check(name, value)


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Accept a JSON object or another mapping."""
    if not isinstance(value, Mapping):
        raise InvalidInput(name, value, "give an object")
    return value


def listed(item: Check, most: int) -> Check:
    """Make a check of lists and tuples: at most ``most`` entries, and ``item`` accepts each entry.

    The check returns a list.
    """

    def check(name: str, value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise InvalidInput(name, value, "give a list")
        if len(value) > most:
            raise InvalidInput(name, f"{len(value)} entries", f"give at most {most} entries")
        try:
            return [item(name, entry) for entry in value]
        except InvalidInput:  # Entries get names only for an error: names cost time.
            return [item(f"{name}[{index}]", entry) for index, entry in enumerate(value)]

    return check


def known(names: Iterable[str], given: Iterable[str], what: str) -> None:
    """Raise InvalidInput with the field ``what`` if a name in ``given`` is not in ``names``."""
    allowed = sorted(names)
    for name in given:
        if name not in allowed:
            raise InvalidInput(what, name, meant(name, allowed))


def meant(given: object, names: Iterable[Any], listed: str = "") -> str:
    """Return the hint for an unknown name: similar names first, then all known names.

    Args:
        given: the unknown name.
        names: the known names.
        listed: a sentence that says where the known names are listed; it replaces their list.
    """
    known_names = list(map(str, names))
    said = given.strip().lower() if isinstance(given, str) and len(given) <= MOST_SHOWN else ""
    near = get_close_matches(said, known_names, 2, 0.7)
    every = listed or (f"use one of {', '.join(known_names)}" if known_names else "there is none")
    return f"did you mean {' or '.join(near)}? {every[0].upper()}{every[1:]}" if near else every


# Dataclasses.


def attributes(
    values: object,
    checks: Mapping[str, Check] | None = None,
    where: str = "",
    error: type[InvalidInput] = InvalidInput,
) -> None:
    """Check attributes of a dataclass, and replace each attribute by its check's result.

    Args:
        checks: name of the attribute -> check; by default the checks that :func:`checked` declared.
        where: prefix of the attributes' names in errors, for example ``mixture.``.
        error: class of the exception to raise.
    """
    kind: Any = type(values)
    for name, check in (_declared(kind) if checks is None else checks).items():
        value = getattr(values, name)
        try:
            clean = check(where + name, value)
        except InvalidInput as bad:
            raise error(bad.field, bad.value, bad.fix) from None
        if clean is not value:
            object.__setattr__(values, name, clean)


def checked(check: Check, default: Any = MISSING) -> Any:
    """Declare a dataclass field with a check, which :func:`build` and :func:`attributes` run."""
    return field(default=default, metadata={"check": check})


@cache
def _declared(kind: Any) -> dict[str, Check]:
    """Return name -> check for the fields that :func:`checked` declared."""
    return {f.name: f.metadata["check"] for f in fields(kind) if "check" in f.metadata}


def nested(kind: type) -> Check:
    """Make a check that builds the dataclass ``kind`` from a mapping of its fields."""
    return lambda name, value: build(kind, value, name)


def build(kind: type, values: Any, where: str = "") -> Any:
    """Build the dataclass ``kind`` from a JSON object that has its fields.

    A field declared with :func:`checked` uses its own check. The check of any other field follows
    from its annotation: ``int`` and ``float`` are counts and durations, so they must be finite and
    not negative.

    Args:
        where: name of the object in errors; its fields are called ``where.name``.

    Raises:
        InvalidInput: if a field is unknown, missing or wrong; the error names it.
    """
    if not isinstance(values, Mapping):
        raise InvalidInput(where or "object", values, "give an object")
    checks, required = _checks(kind)
    prefix, found = where and where + ".", {}
    for name, value in values.items():
        if name not in checks:
            raise InvalidInput(f"{prefix}{name}", value, meant(name, checks))
        found[name] = checks[name](prefix + name, value)
    for name in required:
        if name not in found:
            raise InvalidInput(prefix + name, None, "give it")
    return kind(**found)


@cache
def _checks(kind: Any) -> tuple[dict[str, Check], tuple[str, ...]]:
    """Return the check of each field, and the names of the fields without a default."""
    hints = get_type_hints(kind)
    checks = {
        entry.name: entry.metadata.get("check") or _of_type(hints[entry.name])
        for entry in fields(kind)
    }
    needed = (
        entry.name
        for entry in fields(kind)
        if entry.default is MISSING and entry.default_factory is MISSING
    )
    return checks, tuple(needed)


def _of_type(hint: Any) -> Check:
    """Return the check for an annotation; a type that is not listed here must be a mapping."""
    plain = {bool: flag, int: whole(0), float: number(0.0), str: text(MOST_TEXT), Any: anything}
    if hint in plain:
        return plain[hint]
    inner = get_args(hint)
    if type(None) in inner:
        return maybe(_of_type(next(part for part in inner if part is not type(None))))
    if getattr(hint, "__origin__", None) is tuple:
        entries = listed(_of_type(inner[0]), MOST_ENTRIES)
        return lambda name, value: tuple(entries(name, value))
    return nested(hint) if isinstance(hint, type) and is_dataclass(hint) else mapping


# Files.

MOST_TEXT, MOST_ENTRIES = 1 << 26, 1 << 24


def text_in(path: Path, name: str, most: int, what: str = "text") -> str:
    """Return the UTF-8 text of a regular file.

    Other files are refused, because reading a pipe would block and a device may never end.

    Args:
        name: the setting that named the file, for errors.
        most: largest allowed size of the file in bytes.
        what: kind of content that the file should have, for errors.

    Raises:
        InvalidInput: if the file is missing, not a regular file, too large, or not UTF-8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidInput(name, str(path), f"give a regular file that holds {what}")
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise InvalidInput(name, str(path), f"the file is too large: give at most {most} bytes")
        return TextIOWrapper(BytesIO(data), "utf-8").read()  # Every line ends with "\n".
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        said = reason(error) if isinstance(error, OSError) else f"it is not {what}"
        fix = f"the file cannot be read ({said}); give a file that holds {what}"
        raise InvalidInput(name, str(path), fix) from None


def json_object(path: Path, name: str, most: int = 1 << 26) -> dict[str, Any]:
    """Return the JSON object in a file; for arguments and errors see :func:`text_in`."""
    try:
        value = json.loads(text_in(path, name, most, "JSON"))
    except InvalidInput:
        raise
    except (ValueError, RecursionError):
        fix = "the file cannot be read (it is not JSON); give a JSON file"
        raise InvalidInput(name, str(path), fix) from None
    if not isinstance(value, dict):
        raise InvalidInput(name, str(path), "the file must hold a JSON object")
    return value


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f" of at least {low:g}" if low else ", not negative"
    return f" from {_shown(low)} to {_shown(high)}"


def _shown(value: float | None) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _inside(value: Any, low: float | None, high: float | None) -> bool:
    """Return whether ``value`` is within the bounds; NaN is not, if there is a bound."""
    return (low is None or bool(low <= value)) and (high is None or bool(value <= high))


# Other names of settings, from other engines and the models' own scripts.

T = TypeVar("T")


def own_names(values: Mapping[str, T], names: Mapping[str, str], where: str = "") -> dict[str, T]:
    """Return the values under this project's names of settings, in the same order.

    Args:
        names: another engine's name -> this project's name; names not listed here stay as they are.
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
