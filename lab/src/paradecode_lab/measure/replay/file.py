"""Reads and writes a recording's file: safetensors with a JSON header, never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paradecode.core.errors import InvalidInput

KEY = "paradecode.replay"
VERSION = 2
MOST_BYTES = 1 << 31
DTYPES: dict[str, np.dtype[Any]] = {
    "tokens": np.dtype(np.int32),
    "lengths": np.dtype(np.int64),
    "top_ids": np.dtype(np.int32),
    "top_logits": np.dtype(np.float32),
    "log_normalizer": np.dtype(np.float64),
}
FIX = "give a file that `paradecode replay record` has written"


def write(path: Path, header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a file; an old file at ``path`` stays until the new file is complete."""
    own = {name: tensors[name].astype(dtype) for name, dtype in DTYPES.items()}
    part = path.with_name(path.name + ".part")
    try:
        save_file(own, part, {KEY: json.dumps({"version": VERSION, **header})})
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        raise InvalidInput("recording", str(path), f"name a file to write ({error})") from None
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the header, without its version, and the tensors.

    Raises:
        InvalidInput: the file is damaged, too large, or of another version.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInput("recording", str(path), f"it is larger than {MOST_BYTES} bytes")
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {}).get(KEY, "null"))
            names = set(file.keys())
            if names != DTYPES.keys():
                raise InvalidInput("recording", sorted(names), FIX)
            tensors = {name: file.get_tensor(name) for name in DTYPES}
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("recording", str(path), f"{FIX} ({error})") from None
    if not isinstance(header, dict) or header.pop("version", None) != VERSION:
        raise InvalidInput("recording", str(path), f"{FIX} (version {VERSION})")
    for name, dtype in DTYPES.items():
        if tensors[name].dtype != dtype:
            raise InvalidInput(f"recording {name}", tensors[name].dtype, f"it must be {dtype}")
    return header, tensors
