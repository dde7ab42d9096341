"""Keeps the old names of modules, which packages with own methods import, until version 0.4."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "paradecode.core.request": "paradecode.core.decoder",
    "paradecode.core.sequence": "paradecode.core.decoder",
    "paradecode.methods.draft.method": "paradecode.methods.draft.loop",
    "paradecode.methods.parameters": "paradecode.methods.parts",
}
RENAMED = {"Sequence": "TokenSequence"}


class OldNames:
    """Finds a module by its old name, warns, and gives what the new one has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # It is a loader, whose class takes long to import.
        return ModuleSpec(fullname, self) if fullname in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python makes the module as usual."""

    def exec_module(self, module: ModuleType) -> None:
        now = MOVED[module.__name__]
        text = f"{module.__name__} is {now} now; the old name goes in 0.4"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        new = import_module(now)

        def named(name: str) -> object:
            return getattr(new, RENAMED.get(name, name))

        module.__dict__["__getattr__"] = named


sys.meta_path.append(OldNames())
