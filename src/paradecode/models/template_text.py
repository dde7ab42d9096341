"""Operations on texts for chat templates; each pays from the allowance before it makes its result.

A width or a precision of nine digits turns a short format into a gigabyte. So each number in a
format is checked first, and each field is formatted separately.
"""

from __future__ import annotations

import pprint
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter, SecurityError

from paradecode.models import template_allowance
from paradecode.models.template_allowance import ENTRY, pay, size_of, steps, weighed

MAX_SLOW = 1 << 14
"""Largest number of characters of a text for operations that scan a text repeatedly."""
MAX_NEEDLE = 256
"""Largest number of characters of a text that is searched from the end, or of a set of characters
to strip."""
MAX_DIGITS = 64
"""Largest number of digits to which a number is rounded."""
ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1")
_SLOW = ("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip")
"""Methods that compare every position of the text with the whole argument."""
_PADDED = ("center", "ljust", "rjust", "zfill")
_PARTED = ("split", "rsplit", "splitlines")
_WORDS, _LINES = re.compile(r"\S+"), re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_FIELD = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<flags>[#0\- +]*)(?P<width>\*|\d+)?"
    r"(?:\.(?P<digits>\*|\d*))?[hlL]?(?P<kind>.)",
    re.DOTALL,
)


def check_needle(needle: object) -> None:
    """Raise SecurityError for a text that takes too long to search for."""
    if isinstance(needle, str) and len(needle) > MAX_NEEDLE:
        raise SecurityError(f"look for at most {MAX_NEEDLE} characters")


def check_method(name: str, text: str, args: Sequence[Any]) -> None:
    """Pay for the result of a text's method; raise SecurityError if the method is too slow."""
    first = args[0] if args else None
    if name in _SLOW and args:
        check_needle(first)
    elif name in _PADDED:
        _size(first)
    elif name == "expandtabs":
        pay(text.count("\t") * _size(8 if first is None else first))
    elif name == "replace" and len(args) >= 2:
        old, new = str(first), str(args[1])
        pay(text.count(old) * max(len(new) - len(old), 0))
    elif name == "join" and args:
        pay(sum(len(str(part)) + len(text) for part in args[0]))
    elif name == "translate" and isinstance(first, Mapping):
        pay(len(text) * max((len(str(value)) for value in first.values()), default=0))
    elif name in _PARTED:
        sought = _LINES if name == "splitlines" else _WORDS
        parts = text.count(first) if isinstance(first, str) and first else 0
        most = template_allowance.MAX_VALUE // ENTRY + 1
        pay(ENTRY * (parts or 1 + sum(1 for _ in islice(sought.finditer(text), most))))
    elif name == "maketrans":
        pay(ENTRY * sum(len(part) for part in args if isinstance(part, (str, dict))))
    elif name == "encode":
        pay(4 * len(text))
        if not {*args[:1]} <= {*ENCODINGS}:
            raise SecurityError(f"use one of {', '.join(ENCODINGS)}")


def percent(text: str, values: Any) -> str:
    """Return ``text % values``, formatted field by field."""
    several = values if isinstance(values, tuple) else (values,)
    used, parts, at = 0, list[str](), 0

    def following() -> Any:
        nonlocal used
        if used >= len(several):
            raise TypeError("not enough values for the format")
        used += 1
        return several[used - 1]

    for field in _FIELD.finditer(text):
        parts.append(text[at : field.start()])
        at = field.end()
        if field["kind"] == "%":
            parts.append(field[0] % ())
            continue
        width, digits = (following() if field[n] == "*" else field[n] for n in ("width", "digits"))
        for number in (width, digits):
            _size(int(number or 0))
        value = values[field["key"]] if field["key"] is not None else following()
        spec = f"%{field['flags']}{'' if width is None else int(width)}"
        spec += "" if digits is None else f".{int(digits or 0)}"
        parts.append(f"{spec}{field['kind']}" % (weighed(value),))
        pay(len(parts[-1]))
    rest = text[at:]
    if "%" in rest:
        raise ValueError("incomplete format")
    if used < len(several) and not isinstance(values, Mapping):
        raise TypeError("not all values are used by the format")
    return "".join([*parts, rest])


class _Fields(SandboxedFormatter):
    """``str.format``, whose fields pay for the numbers in their format."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(weighed(value), conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        check_needle(format_spec)
        for number in re.findall("[0-9]+", format_spec):
            _size(int(number))
        made = super().format_field(weighed(value), format_spec)
        pay(len(made))
        return made


def formatting(environment: SandboxedEnvironment, method: Any) -> Callable[..., str] | None:
    """Return a replacement for a text's ``format`` or ``format_map``; None for other methods."""
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if not isinstance(text, str) or name not in ("format", "format_map"):
        return None
    fields = _Fields(environment)
    if name == "format_map":
        return lambda values: fields.vformat(str(text), (), values)
    return lambda *args, **named: fields.vformat(str(text), args, named)


def total(values: Sequence[Any], start: Any) -> Any:
    """Return the sum of values; each addition pays for its result."""
    for value in values:
        pay(size_of(start) + size_of(value))
        start = start + value
    return start


def words_in(text: object) -> int:
    """Return the number of words; each word costs a step."""
    return sum(1 for _ in steps(re.finditer(r"\w+", str(text))))


def pretty(value: object) -> str:
    """Return ``pprint`` of a short value."""
    short(repr(value))
    return pprint.pformat(value)


def short(text: str) -> str:
    """Return the text; raises SecurityError if it is too long for a slow operation."""
    if len(text) > MAX_SLOW:
        raise SecurityError(f"this takes texts of at most {MAX_SLOW} characters")
    return text


def rounded_digits(digits: object) -> int:
    """Return a number of digits for rounding; raises SecurityError if it is too large."""
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise SecurityError(f"round to at most {MAX_DIGITS} digits")
    return digits


def _size(number: Any) -> int:
    """Return a width, and pay for it before anything is multiplied by it."""
    if not isinstance(number, int):
        raise TypeError("a width is a whole number")
    pay(abs(number))
    return abs(number)
