"""Read JSON from an untrusted sender. Refuse what other parsers disagree about or crash on."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from paradecode.core.errors import InvalidInput

MAX_DEPTH = 64
MAX_VALUES = 1 << 20
MAX_BRACKETS = 1 << 18
"""The most opening brackets, where those inside of strings count.

In memory, an empty list takes twenty times as many bytes as its text.
"""
MAX_KEYS = 1 << 13
"""The most keys of one object. A later check may report an error for each of them."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair. Python's parser joins whole pairs."""

LOWEST, HIGHEST = -(1 << 63), (1 << 64) - 1


def read(body: bytes) -> Any:
    """Return the value of a JSON text.

    Some valid JSON is refused as well: encodings other than UTF-8, a key given twice in one object,
    numbers that are not finite, whole numbers beyond 64 bits, and half of a surrogate pair (no text
    can hold it). There are limits as well: MAX_DEPTH levels, MAX_VALUES values, MAX_BRACKETS lists
    and objects, and MAX_KEYS keys in one object. The time is linear in the length.

    Raises:
        InvalidInput: whose ``field`` is ``body``.
    """
    if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        raise _refusal(f"more than {MAX_BRACKETS} brackets", "send less at once")
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_constant,
        )
    except UnicodeDecodeError:
        raise _refusal("it is not UTF-8", "encode it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise _refusal(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}",
                       "write one JSON object") from None  # fmt: skip
    except RecursionError:
        raise _too_deep() from None
    _check(value)
    return value


def _check(value: Any) -> None:
    """Raise InvalidInput for too many levels or values, and for text that UTF-8 cannot encode."""
    level, depth, seen = [value], 0, 0
    while level:
        seen += len(level)
        if seen > MAX_VALUES:
            raise _refusal(f"more than {MAX_VALUES} values", "send less at once")
        inner: list[Any] = []
        nested = False
        for entry in level:
            if isinstance(entry, dict):
                inner += entry.keys()
                inner += entry.values()
                nested = True
            elif isinstance(entry, list):
                inner += entry
                nested = True
            elif isinstance(entry, str) and SURROGATE.search(entry):
                raise _refusal("half of a surrogate pair in a text", "write whole characters")
        depth += nested
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = inner


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise _refusal(f"an object of {len(pairs)} keys", f"give at most {MAX_KEYS}")
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise _refusal(f"the key {twice[:60]!r} is given twice in one object", "give it once")
    return made


def _whole(digits: str) -> int:
    if len(digits) > 20 or not LOWEST <= int(digits) <= HIGHEST:
        raise _refusal("a whole number beyond 64 bits", "give a smaller number")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _refusal("a number that is too large", "give a finite number")
    return value


def _constant(name: str) -> float:
    raise _refusal(f"{name} is not JSON", "give a finite number")


def _too_deep() -> InvalidInput:
    return _refusal(f"more than {MAX_DEPTH} levels of nesting", "nest less")


class _Plain(str):
    """A text that an error message shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _refusal(problem: str, fix: str) -> InvalidInput:
    return InvalidInput("body", _Plain(problem), fix)
