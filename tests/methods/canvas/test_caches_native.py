"""The caches on the native core: the oracle's trajectories, and limits that change no bit."""

from __future__ import annotations

import pytest
from canvases import run
from limits import ALWAYS, SPARSE

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.tiny import tiny_checkpoint

PROMPT = tuple(5 + (7 * i) % 80 for i in range(21))


def native(kind: str, dtype: str) -> Backend:
    kv = "f32" if dtype == "f32" else "f16"
    return NativeBackend(*tiny_checkpoint(kind), dtype=dtype, kv_dtype=kv, threads=1)


def steps(sequence):
    return [step.canvas for step in sequence.trace]


@pytest.mark.first(4)
@pytest.mark.parametrize("cache", SPARSE)
@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_the_oracle_s_trajectory_in_fewer_rows(kind: str, cache: str) -> None:
    pytest.importorskip("torch")
    for blocks in ("blocks=full", "block_length=8", "blocks=adaptive(ahead=0.5)"):
        spec = f"static({blocks},cache={cache})"
        oracle = open_backend("torch", *tiny_checkpoint(kind), dtype="fp64", threads=1)
        wanted, got = run(oracle, spec, PROMPT), run(native(kind, "f32"), spec, PROMPT)
        assert got.output == wanted.output
        assert [s.offsets for s in steps(got)] == [s.offsets for s in steps(wanted)]
        assert got.rows == wanted.rows < got.forwards * (len(PROMPT) + 24)


@pytest.mark.parametrize("cache", ALWAYS)
@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_no_bit_changes_where_nothing_is_stale(kind: str, cache: str) -> None:
    plain = run(native(kind, "q4"), "static(block_length=8)", PROMPT)
    fresh = run(native(kind, "q4"), f"static(block_length=8,cache={cache})", PROMPT)
    assert steps(fresh) == steps(plain)


@pytest.mark.parametrize("cache", [*SPARSE, "two_level"])
def test_no_bit_changes_for_models_with_blocks(cache: str) -> None:
    plain = run(native("sdar", "q4"), "static", PROMPT)
    cached = run(native("sdar", "q4"), f"static(cache={cache})", PROMPT)
    assert steps(cached) == steps(plain)
    assert cached.rows < plain.rows
