"""What the native core holds when nothing runs."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from native_models import BASE, make
from native_models import span as native_span

from paradecode.backends.native import backend as native_backend
from paradecode.core.errors import InvalidInput
from paradecode.serve.worker.memory import resident


@pytest.mark.skipif(resident() == 0 or sys.platform == "darwin", reason="says no current memory")
def test_idle_memory_does_not_follow_the_largest_forwards():
    """Logits that were freed leave little behind, however many large ones there were at once."""
    backend = make(replace(BASE, vocab_size=49152), threads=1)
    pages = [0, 1, 2, 3]
    several = [backend.forward([native_span(pages, [*range(64)])])[0].logits for _ in range(2)]
    before = resident()  # Of which two times 12.6 MB are the logits that are held here.
    several += [backend.forward([native_span(pages, [*range(64)])])[0].logits for _ in range(8)]
    assert resident() > before + 8 * 12e6
    several.clear()
    assert resident() < before + 16e6


@pytest.mark.parametrize("dtype", ["auto", "q4"])
def test_a_model_that_no_memory_holds_is_refused_before_it_is_read(monkeypatch, dtype):
    monkeypatch.setattr(native_backend, "physical_memory", lambda: 20_000)
    with pytest.raises(InvalidInput, match=r"dtype: .*GB, and this machine has 2e-05 GB: use q4"):
        make(BASE, dtype=dtype)
    for known in (None, 1 << 30):
        monkeypatch.setattr(native_backend, "physical_memory", lambda known=known: known)
        make(BASE, dtype=dtype).close()
