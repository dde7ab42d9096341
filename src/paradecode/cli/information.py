"""Collect what ``paradecode info`` shows: versions, machine, kernels, and a forward's cost."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.table import Table

from paradecode import __version__
from paradecode.backends.native import core_is_built
from paradecode.core.errors import InvalidInput
from paradecode.engine.cost import CostCurve, processor

PACKAGES = ("numpy", "tokenizers", "gguf", "safetensors", "torch", "huggingface_hub")


def machine_record() -> dict[str, Any]:
    """Return facts about machine and versions, for people and for result files."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "paradecode": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "packages": {name: version_of(name) for name in PACKAGES},
    }


def native_record() -> dict[str, Any]:
    """Return the kernels that the native core would run, and the reason for this choice."""
    try:
        if not core_is_built():
            fix = "install a C++ compiler, and then this package once more"
            return {"available": False, "reason": f"it was not compiled: {fix}"}
        from paradecode.backends.native import _core
        from paradecode.backends.native.machine import default_threads
    except (ImportError, InvalidInput) as error:
        return {"available": False, "reason": str(error)}
    chosen, reason = _core.chosen_isa()
    return {
        "available": True,
        "instruction_set": chosen,
        "reason": reason,
        "built_in": list(_core.available_isas()),
        "threads": default_threads(),
    }


def in_words(record: dict[str, Any]) -> list[str]:
    """Return the lines that show a machine's record to a person."""
    packages, native = record["packages"], record["native"]
    kernels = native["reason"]
    if native["available"]:
        built = ", ".join(native["built_in"])
        kernels = f"{native['instruction_set']} ({kernels}); built in: {built}"
        kernels += f"; {native['threads']} threads"
    missing = [name for name, found in packages.items() if found is None]
    lines = [
        f"paradecode {record['paradecode']}, Python {record['python']}, {record['system']}",
        f"processor: {record['processor']}, {record['usable_cores']} of {record['cores']} cores",
        f"native core: {kernels}",
        "packages: " + ", ".join(f"{name} {found}" for name, found in packages.items() if found),
    ]
    lines += [f"not installed: {', '.join(missing)}"] if missing else []
    return lines + [f"{name}: {record[name]}" for name in ("model", "backend") if name in record]


def cost_table(curve: CostCurve) -> Table:
    """Return a table of the milliseconds of a forward, and of their ratio to those of one row."""
    table = Table("rows", title="A forward on this machine: ms (times one row)")
    for context in curve.contexts:
        table.add_column(f"context {context}", justify="right")
    for index, rows in enumerate(curve.rows):
        cells = [
            f"{1e3 * column[index]:.2f}  ({column[index] / column[0]:.2f})"
            for column in curve.seconds
        ]
        table.add_row(str(rows), *cells)
    return table


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
