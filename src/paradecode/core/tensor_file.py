"""Small trained parts on disk: safetensors files of one dtype, with a name for what they hold.

Methods read these files, and methods and core use no library but NumPy, so this module has the
format itself. A file has the length of its header (8 bytes, little-endian), the header as JSON, and
the numbers of all tensors. Users name these files, so :func:`load` bounds everything before it
reads it, and refuses a file that is not exactly what was asked for.
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
from numpy.typing import DTypeLike, NDArray

from paradecode.core.errors import InvalidInput

MOST_BYTES = 1 << 28
MOST_HEADER = 1 << 20
MOST_AXES = 4
NAMES = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", np.dtype("<u4"): "U32"}

Facts = dict[str, Any]
"""Sizes and settings of a part, as JSON holds them."""
DAMAGED = "its tensors are not what its header says: train it again"


def save(
    path: str | PathLike[str],
    kind: str,
    facts: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    dtype: DTypeLike = "<f4",
    most: int = MOST_BYTES,
    field: str = "output",
) -> None:
    """Write tensors, with facts about them.

    The file gets its name only when it is complete, so an interrupted run leaves no file.

    Args:
        kind: the kind of file, e.g. ``acceptance head 1``; :func:`load` must be given the same.
        dtype: float32, float16 or uint32; the tensors are converted to it.
        most: bytes that all tensors may have together.
        field: name of the setting that names the file, for errors.

    Raises:
        InvalidInput: if the tensors are too large or the file cannot be written.
    """
    arrays = {name: np.ascontiguousarray(values, dtype) for name, values in tensors.items()}
    metadata = {"paradecode": kind, "facts": json.dumps(facts, sort_keys=True)}
    header: dict[str, Any] = {"__metadata__": metadata}
    size = 0
    for name, array in arrays.items():
        place = [size, size + array.nbytes]
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": place}
        size += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if size > most or len(text) > MOST_HEADER:
        raise InvalidInput(field, fspath(path), f"{size} bytes of tensors are too many")
    part = f"{fspath(path)}.part"
    try:
        with open(part, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                file.write(array.data)
        os.replace(part, path)
    except (OSError, ValueError) as error:
        raise InvalidInput(field, fspath(path), f"give a writable place ({error})") from None
    finally:
        with suppress(OSError, ValueError):
            os.unlink(part)  # It still exists only if something went wrong.


def load(
    path: str, kind: str, field: str, *, dtype: DTypeLike = "<f4", most: int = MOST_BYTES
) -> tuple[Facts, dict[str, NDArray[Any]]]:
    """The facts and the tensors of a file that :func:`save` wrote with the same kind and dtype.

    Raises:
        InvalidInput: naming ``field``, if the file is missing, too large, damaged or of another
            kind.
    """
    header, numbers = _read(path, field, np.dtype(dtype), most)
    try:
        metadata = header.pop("__metadata__")
        named, facts = metadata["paradecode"], json.loads(metadata["facts"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        named = facts = None
    if named != kind or not isinstance(facts, dict):
        raise InvalidInput(field, path, f"give a file of the kind '{kind}'")
    try:
        tensors = _divided(header, numbers)
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(field, path, DAMAGED) from None
    if not np.isfinite(numbers).all():
        raise InvalidInput(field, path, "it has numbers that are NaN or infinite: train it again")
    return facts, tensors


def _read(path: str, field: str, dtype: np.dtype[Any], most: int) -> tuple[Any, NDArray[Any]]:
    """The header of a regular file, and all numbers behind it."""
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidInput(field, path, "give a regular file")
        if info.st_size > most + MOST_HEADER + 8:
            raise InvalidInput(field, path, f"it has {info.st_size} bytes, which is too large")
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            rest = info.st_size - 8 - size
            if size > MOST_HEADER or rest < 0:
                raise InvalidInput(field, path, "it is truncated or no file of a trained part")
            header = json.loads(file.read(size))
            numbers = np.fromfile(file, dtype, rest // dtype.itemsize)
    except InvalidInput:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(field, path, f"give a readable file ({error})") from None
    if numbers.nbytes != rest:
        raise InvalidInput(field, path, DAMAGED)
    return header, numbers


def _divided(header: Mapping[str, Any], numbers: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The numbers as tensors, which must follow one another without a gap.

    Raises:
        ValueError, KeyError, TypeError: if they do not.
    """
    tensors: dict[str, NDArray[Any]] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, start = entry["shape"], end
        # First: the product of a text and a number is a longer text.
        if not isinstance(shape, list) or len(shape) > MOST_AXES:
            raise ValueError(name)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(name)
        end += math.prod(shape)
        places = [start * numbers.itemsize, end * numbers.itemsize]
        if entry["dtype"] != NAMES[numbers.dtype] or entry["data_offsets"] != places:
            raise ValueError(name)
        tensors[name] = numbers[start:end].reshape(shape)
    if end != len(numbers):
        raise ValueError("numbers that belong to no tensor")
    return tensors
