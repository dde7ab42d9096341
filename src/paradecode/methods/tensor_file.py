"""Small trained parts of methods on disk: safetensors files with a checked header.

Methods run without the safetensors package, and what they load was named by a user: so this reader
knows the format itself, bounds everything before it allocates, and refuses whatever is not exactly
the kind of file that was asked for.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput

MOST_BYTES = 1 << 28
MOST_HEADER = 1 << 16
MOST_AXES = 4
Facts = dict[str, Any]
Tensors = dict[str, NDArray[np.float32]]


def save_tensors(
    path: str | PathLike[str], kind: str, facts: Mapping[str, Any], tensors: Mapping[str, Any]
) -> None:
    """Write float32 tensors with a header that says what they are.

    The file appears under its name when it is complete, so that an interrupted run leaves none.

    Args:
        kind: what the file is, e.g. ``acceptance head 1``; :func:`load_tensors` asks for the same.
        facts: sizes and settings, as JSON holds them.

    Raises:
        InvalidInput: if the file cannot be written.
    """
    header: dict[str, Any] = {
        "__metadata__": {"paradecode": kind, "facts": json.dumps(facts, sort_keys=True)}
    }
    parts, end = [], 0
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, "<f4")
        start, end = end, end + data.nbytes
        header[name] = {"dtype": "F32", "shape": data.shape, "data_offsets": (start, end)}
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER or end > MOST_BYTES:
        raise InvalidInput("output", fspath(path), f"{end} bytes of tensors are too many")
    part = f"{fspath(path)}.part"
    try:
        with open(part, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for data in parts:
                file.write(data.data)
        os.replace(part, path)
    except (OSError, ValueError) as error:
        raise InvalidInput("output", fspath(path), f"give a writable place ({error})") from None
    finally:
        with suppress(OSError, ValueError):
            os.unlink(part)  # There only if something went wrong.


def load_tensors(path: str, kind: str, field: str) -> tuple[Facts, Tensors]:
    """The facts and tensors of a file that :func:`save_tensors` has written.

    Args:
        field: what the user calls the file; errors name it.

    Raises:
        InvalidInput: for a file that is missing, damaged, too large or of another kind.
    """
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidInput(field, path, "give a regular file")
        if info.st_size > MOST_BYTES + MOST_HEADER + 8:
            raise InvalidInput(field, path, f"it has {info.st_size} bytes, which is too large")
        with open(path, "rb") as file:
            data = file.read(info.st_size)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(field, path, f"give a readable file ({error})") from None
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(MOST_HEADER, len(data) - 8):
        raise InvalidInput(field, path, f"it is truncated or no file of the kind '{kind}'")
    try:
        header = json.loads(data[8 : 8 + size])
        metadata = header.pop("__metadata__")
        named = metadata["paradecode"]
        facts = json.loads(metadata["facts"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        named = header = facts = None
    if named != kind or not isinstance(facts, dict) or header is None:
        raise InvalidInput(field, path, f"give a file of the kind '{kind}'")
    body = memoryview(data)[8 + size :]
    places = {name: _place(field, path, len(body), entry) for name, entry in header.items()}
    if sum(end - start for _, start, end in places.values()) != len(body):
        raise InvalidInput(field, path, "its tensors are not what its header says: train it again")
    tensors = {
        name: np.frombuffer(body[start:end], "<f4").astype(np.float32).reshape(shape)
        for name, (shape, start, end) in places.items()
    }
    if not all(np.isfinite(values).all() for values in tensors.values()):
        raise InvalidInput(field, path, "it has numbers that are NaN or infinite: train it again")
    return facts, tensors


def checked(field: str, path: str, tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InvalidInput unless these tensors are there, with these shapes, and no others."""
    found = {name: values.shape for name, values in tensors.items()}
    if found != dict(shapes):
        wrong = sorted(set(found.items()) ^ set(shapes.items()))[0]
        raise InvalidInput(field, path, f"tensor {wrong[0]!r} has a wrong shape: train it again")


def size_in(field: str, path: str, facts: Facts, name: str, most: int) -> int:
    """A whole number from 1 to ``most`` among the facts; raises InvalidInput."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(field, path, f"its {name} is {value!r:.40}, not from 1 to {most}")
    return value


def _place(field: str, path: str, size: int, entry: Any) -> tuple[tuple[int, ...], int, int]:
    """Shape, start and end of one tensor in a body of ``size`` bytes."""
    try:
        shape, (start, end) = tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(n) is int and 0 <= n <= size for n in (*shape, start, end))
        sound = entry["dtype"] == "F32" and len(shape) <= MOST_AXES and whole
        if sound and end - start == 4 * math.prod(shape):
            return shape, start, end
    except (KeyError, TypeError, ValueError):
        pass
    raise InvalidInput(field, path, "the file is damaged: train it again")
