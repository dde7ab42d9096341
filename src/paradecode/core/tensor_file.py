"""Files of small trained parts, as methods see them.

Methods know no file format. The front installs the reader and the writer of
``paradecode.models.tensor_file`` here when the package is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Protocol

from paradecode.core.errors import DecoderError
from paradecode.core.network import Array

Facts = dict[str, Any]
"""Sizes and settings of a part, as JSON holds them."""


class TensorFormat(Protocol):
    """Reads and writes one kind of file."""

    def load(self, path: str, kind: str, field: str) -> tuple[Facts, dict[str, Array]]:
        """The facts and tensors of a file of the kind; raises InvalidInput, naming ``field``."""
        ...

    def save(
        self,
        path: str | PathLike[str],
        kind: str,
        facts: Mapping[str, Any],
        tensors: Mapping[str, Any],
    ) -> None:
        """Write float32 tensors; raises InvalidInput if that is impossible."""
        ...  # fmt: skip


_installed: list[TensorFormat] = []


def install(tensor_format: TensorFormat) -> None:
    """Make this the format of all files."""
    _installed[:] = [tensor_format]


def tensor_format() -> TensorFormat:
    """The format that was installed."""
    if not _installed:
        raise DecoderError("no format of trained parts is installed: import paradecode first")
    return _installed[0]
