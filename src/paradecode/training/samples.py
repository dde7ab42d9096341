"""Logged samples on disk, with the digest of the workload that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from paradecode.core import tensor_file
from paradecode.core.errors import InvalidInput
from paradecode.methods.trained import check_shapes

FIELD = "--samples"
MOST_NUMBERS = tensor_file.MOST_BYTES // 8
"""Most float32 numbers of all inputs together: half of the numbers that a file may hold."""
Own = TypeVar("Own", bound="Samples")


class Samples:
    """Base class of samples: a dataclass of float32 arrays and of facts about them.

    Attributes:
        kind: what the file is; the file contains this text.
        axes: name of each array -> a letter for each axis; axes with equal letters have equal
            sizes. The other fields are facts.
    """

    kind: ClassVar[str]
    axes: ClassVar[Mapping[str, str]]

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.axes))))

    def content(self) -> str:
        """A digest of the arrays."""
        digest = blake2b(digest_size=16)
        for name in self.axes:
            digest.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        return digest.hexdigest()

    def save(self, path: Path, digest: str) -> None:
        """Write the samples; ``digest`` names the workload."""
        facts = {name: getattr(self, name) for name in self.facts()}
        tensors = {name: getattr(self, name) for name in self.axes}
        tensor_file.save(path, self.kind, {**facts, "workload": digest}, tensors)

    @classmethod
    def load(cls: type[Own], path: Path, digest: str, **known: Any) -> Own:
        """The samples of the same workload.

        Args:
            known: values that facts and axes (by letter) must have.

        Raises:
            InvalidInput: for a damaged file, or samples of another workload.
        """
        found, tensors = tensor_file.load(str(path), cls.kind, FIELD)
        letters = {letter for axes in cls.axes.values() for letter in axes}
        wanted = {name: value for name, value in known.items() if name not in letters}
        wanted["workload"] = digest
        if {name: found.get(name) for name in wanted} != wanted:
            raise InvalidInput(FIELD, str(path), "it is of another workload: name a new file")
        sizes = {name: size for name, size in known.items() if name in letters}
        for name, axes in cls.axes.items():
            if name in tensors:
                for letter, size in zip(axes, tensors[name].shape):
                    sizes.setdefault(letter, size)
        shapes = {name: tuple(sizes.get(a, 0) for a in axes) for name, axes in cls.axes.items()}
        check_shapes(FIELD, str(path), tensors, shapes)
        return cls(**{name: found.get(name) for name in cls.facts()}, **tensors)

    @classmethod
    def facts(cls) -> list[str]:
        """Names of the fields that are not arrays."""
        return [field.name for field in fields(cast(Any, cls)) if field.name not in cls.axes]
