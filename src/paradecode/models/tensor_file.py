"""Small trained parts on disk: safetensors files of float32 tensors that say what they are.

A user names the file, so everything is bounded before it is read, and whatever is not exactly the
kind of file that was asked for is refused.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike, fspath
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save as to_bytes

from paradecode.core.errors import InvalidInput
from paradecode.core.network import Array
from paradecode.core.tensor_file import Facts

MOST_BYTES = 1 << 28
MOST_HEADER = 1 << 16
MOST_AXES = 4


class TensorFile:
    """The format; see :class:`paradecode.core.tensor_file.TensorFormat`."""

    def save(
        self,
        path: str | PathLike[str],
        kind: str,
        facts: Mapping[str, Any],
        tensors: Mapping[str, Any],
    ) -> None:
        """Write the tensors with a header that says what they are.

        The file appears under its name when it is complete, so an interrupted run leaves none.

        Args:
            kind: what the file is, e.g. ``acceptance head 1``; :meth:`load` asks for the same.
            facts: sizes and settings, as JSON holds them.
        """
        arrays = {name: np.ascontiguousarray(t, np.float32) for name, t in tensors.items()}
        metadata = {"paradecode": kind, "facts": json.dumps(facts, sort_keys=True)}
        size = sum(array.nbytes for array in arrays.values())
        if len(metadata["facts"]) > MOST_HEADER // 2 or size > MOST_BYTES:
            raise InvalidInput("output", fspath(path), f"{size} bytes of tensors are too many")
        write_whole(path, to_bytes(arrays, metadata), "output")

    def load(self, path: str, kind: str, field: str) -> tuple[Facts, dict[str, Array]]:
        """The facts and tensors of a file that :meth:`save` has written."""
        data = _read(path, field)
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > min(MOST_HEADER, len(data) - 8):
            raise InvalidInput(field, path, f"it is truncated or no file of the kind '{kind}'")
        try:
            metadata = json.loads(data[8 : 8 + size])["__metadata__"]
            named, facts = metadata["paradecode"], json.loads(metadata["facts"])
        except (ValueError, RecursionError, KeyError, TypeError):
            named = facts = None
        if named != kind or not isinstance(facts, dict):
            raise InvalidInput(field, path, f"give a file of the kind '{kind}'")
        try:
            entries = safetensors.deserialize(data)
        except safetensors.SafetensorError as error:
            fix = f"its tensors are not what its header says: train it again ({error})"
            raise InvalidInput(field, path, fix) from None
        tensors = {name: _array(path, field, entry) for name, entry in entries}
        return facts, tensors


def write_whole(path: str | PathLike[str], data: bytes, field: str) -> None:
    """Write a file that appears under its name when it is complete.

    Raises:
        InvalidInput: naming ``field``, if the file cannot be written.
    """
    part = f"{fspath(path)}.part"
    try:
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except (OSError, ValueError) as error:
        raise InvalidInput(field, fspath(path), f"give a writable place ({error})") from None
    finally:
        with suppress(OSError, ValueError):
            os.unlink(part)  # There only if something went wrong.


def _read(path: str, field: str) -> bytes:
    """The bytes of a regular file of at most MOST_BYTES."""
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidInput(field, path, "give a regular file")
        if info.st_size > MOST_BYTES + MOST_HEADER + 8:
            raise InvalidInput(field, path, f"it has {info.st_size} bytes, which is too large")
        with open(path, "rb") as file:
            return file.read(info.st_size)
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(field, path, f"give a readable file ({error})") from None


def _array(path: str, field: str, entry: Mapping[str, Any]) -> Array:
    if entry["dtype"] != "F32" or len(entry["shape"]) > MOST_AXES:
        raise InvalidInput(field, path, "its tensors are not what was saved: train it again")
    array = np.frombuffer(entry["data"], "<f4").astype(np.float32).reshape(entry["shape"])
    if not np.isfinite(array).all():
        raise InvalidInput(field, path, "it has numbers that are NaN or infinite: train it again")
    return array
