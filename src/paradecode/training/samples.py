"""Logged samples on disk: tensors under the digest of the workload they come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.core.network import Array
from paradecode.core.tensor_file import Facts, tensor_format
from paradecode.methods.trained import check_shapes
from paradecode.models.tensor_file import MOST_BYTES

FIELD = "--samples"
MOST_NUMBERS = MOST_BYTES // 8
"""Float32 numbers of all inputs together: half of what a file may hold."""


def save_samples(
    path: Path, kind: str, digest: str, tensors: Mapping[str, Any], **facts: Any
) -> None:
    """Keep samples, with ``facts`` that loading asks for or returns."""
    tensor_format().save(path, kind, {**facts, "workload": digest}, tensors)


def load_samples(
    path: Path, kind: str, digest: str, **facts: Any
) -> tuple[Facts, dict[str, Array]]:
    """The facts and tensors of samples of the same workload and with these facts.

    Raises:
        InvalidInput: for a damaged file, or samples of another workload.
    """
    found, tensors = tensor_format().load(str(path), kind, FIELD)
    wanted = {**facts, "workload": digest}
    if {name: found.get(name) for name in wanted} != wanted:
        raise InvalidInput(FIELD, str(path), "it is of another workload: name a new file")
    return found, tensors


def expect(path: Path, tensors: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InvalidInput unless a file has exactly these tensors."""
    check_shapes(FIELD, str(path), tensors, shapes)
