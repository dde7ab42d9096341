"""Where only the best token of rows is asked for, the LM head is screened, and the tokens stay
the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_models import BASE, random_weights, span

from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import BackendError, InvalidInput


def screened(dtype: str) -> NativeBackend:
    config = replace(BASE, vocab_size=1500)
    backend = NativeBackend(config, random_weights(config), dtype=dtype)
    backend.reserve(4)
    return backend


def best(backend: NativeBackend, tokens: range, only_best: bool) -> list[int]:
    rows = span(range(1), tokens)
    logits = backend._model().forward([rows], None, only_best)[0][0]
    found: list[int] = logits.argmax().tolist()
    return found


@pytest.mark.parametrize("dtype", ["q8", "q4", "f32"])
def test_the_best_tokens_are_those_of_all_logits(dtype: str) -> None:
    backend = screened(dtype)
    for first in range(0, 1400, 13):
        rows = range(first, first + 1 + first % 3)
        assert best(backend, rows, True) == best(backend, rows, False)


def test_nothing_else_may_be_asked() -> None:
    backend = screened("q8")
    logits = backend._model().forward([span(range(1), range(2))], None, True)[0][0]
    for ask in (logits.numpy, logits.log_normalizer, logits.select([0]).entropy):
        with pytest.raises((BackendError, InvalidInput), match="best tokens"):
            ask()
    assert logits.select([1, 0]).argmax().tolist() == logits.argmax()[::-1].tolist()
    assert np.isfinite(backend.forward([span(range(1), range(3))])[0].logits.numpy()).all()
