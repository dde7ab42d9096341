"""Decoding methods. They import only ``core``: a decoder knows no model, no batch and no device.

The package itself can be called: ``paradecode.methods()`` returns a table of all methods.
"""

from __future__ import annotations

import sys
from types import ModuleType

from paradecode.core.result_table import ResultTable


class _Methods(ModuleType):
    def __call__(self) -> ResultTable:
        """Return a table with the name, family, guarantee, needs and summary of every method.

        The table lists built-in and installed methods. ``needs`` names a draft model, or what must
        be trained or found first. It is empty for a method that works at once; such methods come
        first in their family.
        """
        from paradecode.methods.specs import methods

        rows = [
            {
                "method": method.name,
                "family": method.family,
                "guarantee": method.guarantee,
                "needs": "a draft model" if method.models else _trained(method.training),
                "summary": method.summary,
            }
            for method in methods().values()
        ]
        return ResultTable(tuple(sorted(rows, key=lambda row: (row["family"], row["needs"] != ""))))


def _trained(training: str) -> str:
    return "" if training == "none" else training


sys.modules[__name__].__class__ = _Methods
