"""Finds the files that a spec names (a head, a table, a trained network), and their digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paradecode.methods.parts import Parameter, read
from paradecode.methods.specs import Spec
from paradecode_lab.measure.machine import digest


def digests_of(spec: Spec) -> dict[str, str]:
    """Return the digest of each file that a spec names, by the path in the spec.

    Files that come with a package are named without a path. They are not listed, because the
    package's version identifies them.
    """
    named = {
        path for one in (*spec.parts, spec) for path in _named(one.method.parameters, one.settings)
    }
    return {path: digest(Path(path))[:16] for path in sorted(named) if Path(path).exists()}


def _named(parameters: Sequence[Parameter], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of all settings that name files, including settings within a setting."""
    for entry in parameters:
        value = settings.get(entry.name)
        if value and entry.local:
            yield value
        elif value and entry.kind is not None:
            chosen, own = read(entry.kind, entry.name, value)
            yield from _named(chosen.parameters, own)
