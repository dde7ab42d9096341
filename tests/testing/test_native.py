"""The suite on the native core: quantised weights, and still equal token by token."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from in_the_core import native_backends

from paradecode.testing.conformance import cases

METHODS = ("greedy", "prompt-lookup", "suffix+token-recycling", "draft-model", "layer-skip")
WHOLE = ("draft-model", "layer-skip")
"""Methods with every case: their drafts are forwards of a second model or of some layers."""
ESSENTIAL = ("batch-of-16", "mixed-methods", "chunks-of-3", "prefix-cache", "penalties")
"""Cases for the other methods, and for the second architecture. The remaining cases are slow tests:
they concern code above the core, which the toy's tests cover."""


def matrix() -> Iterator[Any]:
    for name, kind in product(METHODS, ("llama", "qwen3-near-tie")):
        for case in cases(name, native_backends, kinds=[kind]):
            quick = case.name in ESSENTIAL or (kind == "llama" and name in WHOLE)
            yield pytest.param(case, marks=() if quick else pytest.mark.slow)


@pytest.mark.first(12)
@pytest.mark.parametrize("case", [*matrix()], ids=str)
def test_native(case) -> None:
    case.run()
