"""Reads and writes small trained parts: safetensors files with one dtype and a named kind.

Users name these files. So :func:`load` limits a file's size before it reads it, and refuses every
file that is not of the requested kind.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paradecode.core.errors import InvalidInput, reason

MOST_BYTES = 1 << 28
MOST_HEADER = 1 << 20
MOST_AXES = 4

Facts = dict[str, Any]
"""Metadata of a trained part, its sizes and settings, as JSON values."""
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
    """Write tensors and their metadata into a safetensors file.

    The file gets its name only when it is complete, so an interrupted run leaves no file.

    Args:
        kind: the kind of file, e.g. ``acceptance head 1``; :func:`load` must be given the same.
        facts: metadata: sizes and settings that JSON can represent.
        dtype: float32, float16 or uint32; the tensors are converted to it.
        most: largest size of all tensors together, in bytes.
        field: name of the setting that names the file, for errors.

    Raises:
        InvalidInput: if the tensors are too large or the file cannot be written.
    """
    from safetensors.numpy import save as to_bytes  # Here, so that listing methods is fast.

    arrays = {name: np.ascontiguousarray(values, dtype) for name, values in tensors.items()}
    size = sum(array.nbytes for array in arrays.values())
    if size > most:
        raise InvalidInput(field, fspath(path), f"{size} bytes of tensors are too many")
    metadata = {"paradecode": kind, "facts": json.dumps(facts, sort_keys=True)}
    part = f"{fspath(path)}.part"
    try:
        Path(part).write_bytes(_in_order(to_bytes(arrays, metadata)))
        os.replace(part, path)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            field, fspath(path), f"give a writable place ({reason(error)})"
        ) from None
    finally:
        with suppress(OSError, ValueError):
            os.unlink(part)  # It still exists only if something went wrong.


def _in_order(data: bytes) -> bytes:
    """Return the same file with a sorted header, so that equal trainings write equal bytes.

    Safetensors itself writes the metadata in a random order.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


def load(
    path: str, kind: str, field: str, *, dtype: DTypeLike = "<f4", most: int = MOST_BYTES
) -> tuple[Facts, dict[str, NDArray[Any]]]:
    """Read the metadata and the tensors of a file that :func:`save` wrote with this kind and dtype.

    Raises:
        InvalidInput: if the file is missing, too large, damaged or of another kind; the error names
            ``field``.
    """
    from safetensors import SafetensorError, safe_open  # Here for the same reason as in `save`.

    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidInput(field, path, "give a regular file")
        if info.st_size > most + MOST_HEADER:
            raise InvalidInput(field, path, f"it has {info.st_size} bytes, which is too large")
        with safe_open(path, "numpy") as file:
            told = file.metadata() or {}
            facts = json.loads(told.get("facts", "null"))
            if told.get("paradecode") != kind or not isinstance(facts, dict):
                raise InvalidInput(field, path, f"give a file of the kind '{kind}'")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except InvalidInput:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(field, path, f"give a readable file ({reason(error)})") from None
    except (TypeError, SafetensorError):
        raise InvalidInput(field, path, DAMAGED) from None
    if any(each.dtype != dtype or each.ndim > MOST_AXES for each in tensors.values()):
        raise InvalidInput(field, path, DAMAGED)
    if not all(np.isfinite(each).all() for each in tensors.values()):
        raise InvalidInput(field, path, "it has numbers that are NaN or infinite: train it again")
    return facts, tensors
