"""Store samples on disk, with digests of the workload and the weights that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from paradecode.core import tensor_file
from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import Spec
from paradecode.methods.trained import check_shapes
from paradecode_lab.measure.machine import digest, digest_of, weights_of
from paradecode_lab.measure.spec_files import digests_of

if TYPE_CHECKING:
    from paradecode.llm import LLM

FIELD = "--samples"
MOST_NUMBERS = tensor_file.MOST_BYTES // 8
"""The most float32 numbers of all inputs together: half of the numbers that a file may hold."""
Own = TypeVar("Own", bound="Samples")


@dataclass(frozen=True)
class Origin:
    """Digests that identify where samples come from.

    Attributes:
        workload: digest of the texts, the settings and the model's name.
        weights: digest of all weights that decoded. It tells models with equal names apart: a model
            is named by its folder, and every training writes ``OUTPUT/model``.
    """

    workload: str
    weights: str

    @classmethod
    def of(cls, llm: LLM, facts: object, text: bytes = b"", spec: Spec | None = None) -> Origin:
        """Return the origin of what this model decodes.

        Args:
            facts: settings of the workload.
            text: content of the workload's file.
            spec: the decoding method, which may read files of its own.
        """
        workload = blake2b(text + repr(facts).encode(), digest_size=16).hexdigest()
        files = digests_of(spec) if spec is not None else {}
        draft = llm.draft_model
        models = (digest_of(llm.engine.weights), digest(weights_of(draft)) if draft else "", files)
        return cls(workload, blake2b(repr(models).encode(), digest_size=16).hexdigest())


class Samples:
    """Base class of samples: a dataclass of float32 arrays and of facts about them.

    Attributes:
        kind: the kind of the file, a text that the file contains.
        axes: name of each array -> one letter for each axis; axes with equal letters have equal
            sizes. All other fields are facts.
    """

    kind: ClassVar[str]
    axes: ClassVar[Mapping[str, str]]

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.axes))))

    def content(self) -> str:
        """Return a digest of the arrays."""
        digest = blake2b(digest_size=16)
        for name in self.axes:
            digest.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        return digest.hexdigest()

    def save(self, path: Path, origin: Origin) -> None:
        """Write the samples and their origin to a file."""
        facts = {name: getattr(self, name) for name in self.facts()}
        tensors = {name: getattr(self, name) for name in self.axes}
        tensor_file.save(path, self.kind, {**facts, **vars(origin)}, tensors)

    @classmethod
    def load(cls: type[Own], path: Path, origin: Origin, **known: Any) -> Own:
        """Read samples, and check that they have this origin.

        Files of older versions have no digest of the weights, which is then not checked.

        Args:
            known: required values of facts, and required sizes of axes by their letters.

        Raises:
            InvalidInput: for a damaged file, or samples of another workload or of other weights.
        """
        found, tensors = tensor_file.load(str(path), cls.kind, FIELD)
        letters = {letter for axes in cls.axes.values() for letter in axes}
        wanted = {name: value for name, value in known.items() if name not in letters}
        wanted["workload"] = origin.workload
        if {name: found.get(name) for name in wanted} != wanted:
            raise InvalidInput(FIELD, str(path), "it is of another workload: name a new file")
        if found.get("weights", origin.weights) != origin.weights:
            fix = "another model of this name, or with other weights, decoded it: name a new file"
            raise InvalidInput(FIELD, str(path), fix)
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
        """Return the names of the fields that are not arrays."""
        return [field.name for field in fields(cast(Any, cls)) if field.name not in cls.axes]
