"""Damaged spans never crash the core: they are refused by name, or they run."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given
from native_models import BASE, random_weights

from paradecode.backends.interface import Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import InvalidInput
from spans import damaged
from tiers import examples

PAGES = 4
BACKEND = NativeBackend(BASE, random_weights(BASE), dtype="q4", threads=2)
BACKEND.reserve(PAGES)
NAMES = {field.name for field in fields(Span)}


def good() -> Span:
    """Three rows behind five cached slots and two tail slots."""
    return Span(
        pages=np.array([3, 1], np.int32),
        tokens=np.array([1, 2, 3], np.int32),
        positions=np.array([7, 8, 8], np.int32),
        slots=np.array([7, 8, -1], np.int32),
        context=5,
        logits=np.array([0, 2], np.int32),
        tail=np.array([5, 6], np.int32),
        tail_positions=np.array([5, 6], np.int32),
        mask=np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 0, 1]], bool),
    )


def test_the_undamaged_span_runs() -> None:
    assert BACKEND.forward([good()])[0].logits.shape == (2, BASE.vocab_size)


@examples(800)
@given(span=damaged(good(), BASE))
def test_damage_is_refused_or_runs(span: Span) -> None:
    try:
        result = BACKEND.forward([span])[0]
    except InvalidInput as error:
        assert any(name in error.field for name in NAMES)  # noqa: PT017
    else:
        assert result.logits.shape == (len(span.logits), BASE.vocab_size)
