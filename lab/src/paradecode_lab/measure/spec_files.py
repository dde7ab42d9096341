"""The files that a spec names (a head, a table, a trained part), and a digest of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paradecode.methods.parts import Parameter, read
from paradecode.methods.specs import Spec
from paradecode_lab.measure.machine import digest


def digests_of(spec: Spec) -> dict[str, str]:
    """Path in the spec -> digest, for each of its files.

    Files that come with the package are named without a path, and are not listed: the version is
    known.
    """
    named = {
        path for one in (*spec.parts, spec) for path in _named(one.method.parameters, one.settings)
    }
    return {path: digest(Path(path))[:16] for path in sorted(named) if Path(path).exists()}


def _named(parameters: Sequence[Parameter], settings: Mapping[str, Any]) -> Iterator[str]:
    """Values of the settings that name files, also of parts within a setting."""
    for entry in parameters:
        value = settings.get(entry.name)
        if value and entry.local:
            yield value
        elif value and entry.kind is not None:
            chosen, own = read(entry.kind, entry.name, value)
            yield from _named(chosen.parameters, own)
