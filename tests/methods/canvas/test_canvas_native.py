"""The native core follows the trajectories of the fp64 oracle, and no neighbour changes a row."""

from __future__ import annotations

import pytest
from canvases import run, run_all

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.sampling import SamplingParams
from paradecode.models.tiny import tiny_checkpoint

SPECS = (
    "static", "static(cache=prefix,block_length=8)", "static(cache=dual,block_length=8)",
    "threshold(threshold=0.4,block_length=8)", "threshold(threshold=0.4,cache=dual)",
    "factor(blocks=full)", "static(score=entropy,steps=9)", "static(score=margin)",
)  # fmt: skip
PROMPTS = (tuple(5 + (7 * i) % 80 for i in range(21)), (6, 7, 8), (40,))


def native(kind: str, dtype: str = "f32", seed: int = 0) -> Backend:
    """Keys and values are rounded to 16 bits unless the weights are not rounded, either."""
    kv = "f32" if dtype == "f32" else "f16"
    checkpoint = tiny_checkpoint(kind, seed=seed)
    return NativeBackend(*checkpoint, dtype=dtype, kv_dtype=kv, threads=1)


@pytest.mark.first(8)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", ["llada", "dream", "sdar"])
def test_the_oracle_s_trajectory(kind: str, spec: str) -> None:
    pytest.importorskip("torch")
    settings = {}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "top_k": 5, "seed": 9}
    for seed, values in enumerate(settings):
        oracle = open_backend("torch", *tiny_checkpoint(kind, seed=seed), dtype="fp64", threads=1)
        wanted = run(oracle, spec, PROMPTS[0], **values)
        got = run(native(kind, seed=seed), spec, PROMPTS[0], **values)
        assert got.output == wanted.output
        assert [s.canvas and s.canvas.offsets for s in got.trace] == [
            s.canvas and s.canvas.offsets for s in wanted.trace
        ]


@pytest.mark.parametrize("dtype", ["q4", "bf16"])
@pytest.mark.parametrize("kind", ["llada", "dream", "sdar"])
def test_a_batch_changes_no_bit(kind: str, dtype: str) -> None:
    """Confidences are compared as well, also with 4-bit weights and a half-precision cache."""
    jobs = [
        (spec, prompt, SamplingParams(max_tokens=20, temperature=t, seed=4, ignore_eos=True))
        for spec, prompt, t in zip(SPECS, PROMPTS * 3, (0.0, 0.7, 0.0, 0.0, 1.0, 0.0, 0.0, 0.9))
    ]
    together = run_all(native(kind, dtype), jobs)
    for job, sequence in zip(jobs, together, strict=True):
        (alone,) = run_all(native(kind, dtype), [job])
        assert sequence.error is None
        assert [s.canvas for s in alone.trace] == [s.canvas for s in sequence.trace]
        assert alone.output == sequence.output


@pytest.mark.parametrize("dtype", ["q4", "f32"])
def test_caches_of_block_models_change_no_bit(dtype: str) -> None:
    for spec in ("static(", "threshold(threshold=0.4,block_length=8,"):
        plain = run(native("sdar", dtype), spec + "cache=none)", PROMPTS[0])
        cached = run(native("sdar", dtype), spec + "cache=prefix)", PROMPTS[0])
        assert [s.canvas for s in plain.trace] == [s.canvas for s in cached.trace]
        assert cached.rows < plain.rows


@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_a_cache_refreshed_every_step_changes_no_bit(kind: str) -> None:
    plain = run(native(kind, "q4"), "static(block_length=8)", PROMPTS[0])
    for cache in ("prefix", "dual"):
        spec = f"static(block_length=8,cache={cache}(refresh=1))"
        fresh = run(native(kind, "q4"), spec, PROMPTS[0])
        assert [s.canvas for s in plain.trace] == [s.canvas for s in fresh.trace]
