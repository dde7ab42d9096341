"""The native core makes the same decisions as an fp64 oracle, whatever the batch.

A cache in which nothing is stale changes no bit either.
"""

import pytest
from canvases import run, run_all, steps
from limits import ALWAYS, SPARSE

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
    """Return a tiny model in the native core.

    Keys and values are rounded to 16 bits, except where the weights are not rounded.
    """
    kv = "f32" if dtype == "f32" else "f16"
    checkpoint = tiny_checkpoint(kind, seed=seed)
    return NativeBackend(*checkpoint, dtype=dtype, kv_dtype=kv, threads=1)


@pytest.mark.first(4)
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
    """A batch changes no text and no confidence, also with 4-bit weights and a 16-bit cache."""
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


@pytest.mark.first(2)
@pytest.mark.parametrize("cache", SPARSE)
@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_the_oracle_s_trajectory_in_fewer_rows(kind: str, cache: str) -> None:
    pytest.importorskip("torch")
    for blocks in ("blocks=full", "block_length=8", "blocks=adaptive(ahead=0.5)"):
        spec = f"static({blocks},cache={cache})"
        oracle = open_backend("torch", *tiny_checkpoint(kind), dtype="fp64", threads=1)
        wanted, got = run(oracle, spec, PROMPTS[0]), run(native(kind), spec, PROMPTS[0])
        assert got.output == wanted.output
        assert [s.offsets for s in steps(got)] == [s.offsets for s in steps(wanted)]
        assert got.rows == wanted.rows < got.forwards * (len(PROMPTS[0]) + 24)


@pytest.mark.parametrize("cache", ALWAYS)
@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_no_bit_changes_where_nothing_is_stale(kind: str, cache: str) -> None:
    plain = run(native(kind, "q4"), "static(block_length=8)", PROMPTS[0])
    fresh = run(native(kind, "q4"), f"static(block_length=8,cache={cache})", PROMPTS[0])
    assert steps(fresh) == steps(plain)


@pytest.mark.parametrize("cache", [*SPARSE, "two_level", "prefix", "dual"])
def test_no_bit_changes_for_models_with_blocks(cache: str) -> None:
    plain = run(native("sdar", "q4"), "static", PROMPTS[0])
    cached = run(native("sdar", "q4"), f"static(cache={cache})", PROMPTS[0])
    assert steps(cached) == steps(plain)
    assert cached.rows < plain.rows
