"""Files that methods load: read and checked once for all requests, and again when they change."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

from paradecode.core.errors import InvalidInput

T = TypeVar("T")
P = ParamSpec("P")
Read = Callable[Concatenate[str, P], T]

MOST_KEPT = 4
"""Files of one kind that stay in memory; beyond that, the file unused longest goes."""


def read_once(field: str) -> Callable[[Read[P, T]], Read[P, T]]:
    """Decorate a function that reads the file at a path; its other arguments are hashable.

    Args:
        field: the user's name for the file. InvalidInput for a path without a file has that name.
    """

    def decorated(read: Read[P, T]) -> Read[P, T]:
        def fresh(stamp: tuple[int, int], path: str, *args: P.args, **kwargs: P.kwargs) -> T:
            return read(path, *args, **kwargs)

        kept: Callable[..., T] = lru_cache(maxsize=MOST_KEPT)(fresh)

        @wraps(read)
        def found(path: str, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                info = os.stat(path)
            except (OSError, ValueError) as error:
                raise InvalidInput(field, path, f"give a readable file ({error})") from None
            return kept((info.st_mtime_ns, info.st_size), path, *args, **kwargs)

        return found

    return decorated
