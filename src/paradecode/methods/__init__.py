"""Methods. They import the core only: a decoder never sees a model, a batch or a device.

The package can be called: ``paradecode.methods()`` is a table of all methods.
"""

from __future__ import annotations

import sys
from types import ModuleType

from paradecode.core.result_table import ResultTable


class _Methods(ModuleType):
    def __call__(self) -> ResultTable:
        """Every method, built in or installed: name, family, guarantee, what it needs, summary.

        ``needs`` is empty where a method works at once, and these methods come first in their
        family. It names a draft model, or what has to be trained or found first.
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
