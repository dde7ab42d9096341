"""The suite on the native core: quantised weights, and still token by token equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.request import TARGET
from paradecode.testing.conformance import cases
from paradecode.testing.machines import DRAFT, Kind, checkpoint

METHODS = ("greedy", "prompt-lookup", "suffix+token-recycling", "draft-model", "layer-skip")
ESSENTIAL = ("batch-of-16", "mixed-methods", "chunks-of-3", "prefix-cache", "penalties")
"""On the second architecture; its other cases are slow tests."""


def native_backends(kind: Kind) -> Mapping[str, Backend]:
    """4-bit weights in the native core."""
    return {
        TARGET: open_backend("native", *checkpoint(kind), dtype="q4", threads=2),
        DRAFT: open_backend("native", *checkpoint(kind, blur=0.05), dtype="q4", threads=2),
    }


def matrix() -> Iterator[Any]:
    for name in METHODS:
        yield from cases(name, native_backends, kinds=["llama"])
        for case in cases(name, native_backends, kinds=["qwen3-near-tie"]):
            yield pytest.param(case, marks=() if case.name in ESSENTIAL else pytest.mark.slow)


@pytest.mark.parametrize("case", [*matrix()], ids=str)
def test_native(case) -> None:
    case.run()
