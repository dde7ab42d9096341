"""The suite on the native core: quantised weights, and still token by token equal."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.request import TARGET
from paradecode.testing.conformance import cases
from paradecode.testing.machines import DRAFT, Kind, checkpoint

METHODS = ("greedy", "prompt-lookup", "suffix+token-recycling", "draft-model", "layer-skip")


def native_backends(kind: Kind) -> Mapping[str, Backend]:
    """4-bit weights in the native core."""
    return {
        TARGET: open_backend("native", *checkpoint(kind), dtype="q4", threads=2),
        DRAFT: open_backend("native", *checkpoint(kind, blur=0.05), dtype="q4", threads=2),
    }


@pytest.mark.parametrize(
    "case",
    [
        case
        for name in METHODS
        for case in cases(name, native_backends, kinds=["llama", "qwen3-near-tie"])
    ],
    ids=str,
)
def test_native(case) -> None:
    case.run()
