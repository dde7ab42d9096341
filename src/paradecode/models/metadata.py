"""Values by key in model files; each value is checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paradecode.core import checks
from paradecode.core.errors import InvalidInput, InvalidModel

MAX_JSON = 1 << 26
"""Largest size of a tokenizer.json in bytes; Gemma's has 33 million."""
MAX_LISTING = 1 << 24
"""Largest size in bytes of a file that lists tensors or tokens; the largest known one,
DeepSeek-V3's index, has 9 million."""
MAX_CONFIG = 1 << 22
"""Largest size in bytes of every other JSON file; Gemma's tokenizer_config.json has 1 million."""


class Metadata(dict[str, Any]):
    """Key -> value of a file; null counts as missing.

    The methods raise InvalidModel if a value is wrong, or missing without a default.
    """

    def text(self, key: str, default: str | None = None) -> str | None:
        return self._read(checks.maybe(checks.text(MAX_JSON)), key, default)

    def whole(
        self, key: str, default: int | None = None, low: int | None = None, high: int | None = None
    ) -> int:
        """Return a whole number; the value may be an array that repeats one whole number."""
        value = self.get(key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and len(value):
            if (value != value[0]).any():
                raise InvalidModel(key, value, "only one and the same value for all layers works")
            return int(value[0])
        return int(self._read(checks.whole(low, high), key, default))

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._read(checks.number(-1e15, 1e15), key, default))

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._read(checks.flag, key, default))

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        value = self.get(key)
        if not isinstance(value, list) or {*map(type, value)} - {str}:
            raise InvalidModel(key, value, "the file must hold a list of strings here")
        return value

    def _read(self, check: checks.Check, key: str, default: Any) -> Any:
        value = self.get(key)
        return as_model(lambda: check(key, default if value is None else value))


def as_model(read: Any) -> Any:
    """Call ``read``, and turn its InvalidInput into InvalidModel."""
    try:
        return read()
    except InvalidInput as error:
        raise InvalidModel(error.field, error.value, error.fix) from None


def read_json(path: Path, most: int = MAX_CONFIG) -> Metadata:
    """Return the JSON object in a file of a model's folder; raises InvalidModel.

    Args:
        most: largest size in bytes; the parsed objects can take thirty times this memory.
    """
    return Metadata(as_model(lambda: checks.json_object(path, "model", most)))
