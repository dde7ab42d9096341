"""FreeDave has the text of the policy underneath, in fewer forwards."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from canvases import ATTENTION, PROMPT, run, steps, toy

from engines import served
from paradecode.backends.native.backend import NativeBackend
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.methods.canvas.policies import freedave
from paradecode.methods.specs import parse
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.toy import ToyBackend, toy_config


class Certain(ToyBackend):
    """A model whose predictions depend only on the position."""

    def head(self, states, tokens):
        return self.table[self.at]

    def forward(self, spans):
        rng = np.random.default_rng(5)
        self.table = rng.normal(size=(200, self.config.vocab_size)) * 4
        self.at = np.concatenate([span.positions[span.logits] for span in spans])
        return super().forward(spans)


@pytest.mark.parametrize("kind", ["full", "block"])
def test_every_draft_comes_true_where_context_does_not_matter(kind: str) -> None:
    backend = Certain(toy_config(**ATTENTION[kind]))
    plain = run(backend, "static(block_length=8)", PROMPT[:4], 24)
    assert plain.forwards == 24
    for depth in (2, 4, 8):
        drafted = run(
            backend, f"freedave(block_length=8,draft_steps={depth},eager=off)", PROMPT[:4], 24
        )
        assert drafted.output == plain.output
        # Each block begins with a forward of its own; its last canvas needs none.
        assert drafted.forwards == 3 * (1 + -(-7 // depth))
    ahead = run(backend, "freedave(block_length=8,draft_steps=4,eager=on)", PROMPT[:4], 24)
    assert ahead.output == plain.output
    assert ahead.forwards == 1 + -(-23 // 4)


def test_batch_and_tree_compute_the_same_rows() -> None:
    for kind in ATTENTION:
        tree = run(toy(kind), "freedave(draft_steps=3,block_length=8)", max_tokens=16)
        batch = run(toy(kind), "freedave(draft_steps=3,block_length=8,mode=batch)", max_tokens=16)
        assert (batch.rows, steps(batch)) == (tree.rows, steps(tree))
        assert batch.forwards > tree.forwards  # Each of a batch counts.


def test_batch_shares_the_steps_of_the_engine() -> None:
    def engine_forwards(spec: str) -> int:
        engine = Engine({"target": toy("full", surprise=0)}, Limits(kv_tokens=1024))
        served(engine, [(spec, PROMPT, {"max_tokens": 16, "ignore_eos": True})])
        return engine.forwards

    tree = engine_forwards("freedave(block_length=16,draft_steps=4)")
    assert engine_forwards("freedave(block_length=16,draft_steps=4,mode=batch)") == tree


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ATTENTION)
def test_only_what_pays_is_drafted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop drafts the most canvases where rows are free, and hardly any where they are dear."""
    still = SimpleNamespace(perf_counter=lambda: 0.0)  # Making a draft takes nothing.
    monkeypatch.setattr(freedave, "time", still)

    def counts(spec: str, *seconds: float) -> tuple[int, int]:
        curve = CostCurve((1, 4096), (64,), (seconds,)) if seconds else None
        engine = Engine({"target": toy(kind, surprise=0)}, Limits(kv_tokens=1024), curve=curve)
        (sequence,) = served(engine, [(spec, PROMPT, {"max_tokens": 40, "ignore_eos": True})])
        outputs.append(sequence.output)
        return sequence.forwards, sequence.rows

    outputs: list[list[int]] = []
    plain = counts("static")
    unknown, free = counts("freedave"), counts("freedave", 1.0, 1.0 + 1e-9)
    assert unknown == free == counts("freedave(draft_steps=4)", 1e-6, 1.0)
    forwards, rows = counts("freedave(eager=off)", 1e-3, 4.096)
    assert plain[0] - 2 <= forwards <= plain[0]
    assert rows <= plain[1] * (1 + 2 / 40)
    assert free[0] < plain[0]
    assert free[1] > plain[1]
    assert all(output == outputs[0] for output in outputs)


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the number of canvases of each forward that computes several."""
    found: list[int] = []
    compute = freedave.DraftAndVerify._compute

    def watched(self, window, last, count):
        found.append(count)
        return compute(self, window, last, count)

    monkeypatch.setattr(freedave.DraftAndVerify, "_compute", watched)
    return found


def decode_requests(requests: int, *seconds: float) -> None:
    """Run one tenant's requests of 40 tokens, one token a forward, one after the other.

    Args:
        seconds: of one row, and of 4,096.
    """
    curve = CostCurve((1, 4096), (64,), (seconds,))
    engine = Engine({"target": toy("full", surprise=0)}, Limits(kv_tokens=1024), curve=curve)
    for _ in range(requests):
        job = "freedave(eager=off)", PROMPT, {"max_tokens": 40, "ignore_eos": True}
        served(engine, [job])


def test_what_does_not_pay_is_tried_less_and_less_often(drafting: list[int]) -> None:
    decode_requests(12, 1e-3, 4.096)
    assert drafting == [2] * 4  # Of 480 forwards: after 32, 64, 128 and 256.


def test_what_making_a_draft_takes_counts(drafting, monkeypatch):
    decode_requests(3, 1.0, 1.0 + 1e-9)
    assert len(drafting) > 60
    drafting.clear()
    clock = count(0.0, 10.0)  # Drafts take ten seconds, a forward one.
    monkeypatch.setattr(freedave, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    decode_requests(3, 1.0, 1.0 + 1e-9)
    assert 1 < len(drafting) < 6


@pytest.mark.first(3)
@pytest.mark.parametrize(("kind", "settings", "timed"), [
    ("full", "", True), ("full", "cache=prefix", False), ("full", "cache=dual", False),
    ("block", "steps=9", False), ("block", "base=threshold(threshold=0.8)", False),
    ("full", "base=dimple", False), ("causal", "cache=prefix", True),
    ("causal", "cache=two_level", True), ("block", "cache=dual", True),
    ("block", "cache=two_level,block_length=2", False),
])  # fmt: skip
def test_the_clock_changes_no_text(kind: str, settings: str, timed: bool) -> None:
    """Measured costs set the number of drafts only where the text does not depend on it."""

    def made(*seconds: float) -> list[tuple[list[int], int]]:
        """Return outputs and forwards of one tenant's requests.

        ``seconds`` are those of one row and of 4,096.
        """
        curve = CostCurve((1, 4096), (64,), (seconds,))
        engine = Engine({"target": toy(kind, 300)}, Limits(kv_tokens=1024), curve=curve)
        found = []
        for _ in range(3):
            job = f"freedave({settings})", PROMPT, {"max_tokens": 24, "ignore_eos": True}
            (sequence,) = served(engine, [job])
            found.append((sequence.output, sequence.forwards))
        return found

    free, dear = made(1.0, 1.0 + 1e-9), made(1e-3, 4.096)
    assert [output for output, _ in free] == [output for output, _ in dear]
    assert (free != dear) == timed


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("kind", ["block", "block-shift", "causal"])
def test_exact_caches_change_nothing(kind: str, cache: str) -> None:
    for mode in ("tree", "batch"):
        plain = run(toy(kind), "static(block_length=8)")
        drafted = run(toy(kind), f"freedave(block_length=8,cache={cache},mode={mode})")
        assert drafted.output == plain.output
        assert drafted.rows < run(toy(kind), f"freedave(block_length=8,mode={mode})").rows


def test_plus_plus_commits_what_was_foreseen() -> None:
    """A draft may be a part of what `threshold` decides; each position is still decided once."""
    for kind in ATTENTION:
        for surprise in (100, 700):
            plain = run(toy(kind, surprise), "threshold(threshold=0.6,block_length=8)")
            plus = run(
                toy(kind, surprise), "freedave(base=threshold(threshold=0.6),block_length=8)"
            )
            assert len(plus.output) == len(plain.output)
            decided = [at for step in steps(plus) for at in step.offsets]
            assert len(set(decided)) == len(decided)
            assert plus.forwards <= len(decided)


def test_guarantee_is_that_of_what_is_drafted() -> None:
    assert parse("freedave").guarantee == "exact"
    assert parse("freedave(draft_steps=8,mode=batch,block_length=4)").guarantee == "exact"
    for lossy in ("base=threshold", "steps=4", "cache=dual", "base=static(score=margin)"):
        assert parse(f"freedave({lossy})").guarantee == "lossy"


@pytest.mark.wide
def test_many_drafts_of_a_long_canvas_stay_bounded() -> None:
    prompt = tuple(4 + i % 20 for i in range(120))
    long = run(toy("full"), "freedave(draft_steps=64,block_length=32)", prompt, 32)
    assert long.output == run(toy("full"), "static(block_length=32)", prompt, 32).output
    assert long.rows <= long.forwards * 4096


@pytest.mark.parametrize("dtype", ["f32", "q4"])
@pytest.mark.parametrize("kind", ["llada", "dream", "sdar"])
def test_no_bit_changes_on_transformers(kind: str, dtype: str) -> None:
    """No bit changes, confidences included.

    A row's sums do not depend on the other canvases of its forward.
    """
    kv = "f32" if dtype == "f32" else "f16"
    prompt = tuple(5 + (7 * i) % 80 for i in range(21))
    for seed, values in enumerate(({}, {"temperature": 0.8, "seed": 3})):
        backend = NativeBackend(
            *tiny_checkpoint(kind, seed=seed), dtype=dtype, kv_dtype=kv, threads=1
        )
        plain = run(backend, "static(block_length=8)", prompt, **values)
        for mode in ("tree", "batch"):
            spec = f"freedave(block_length=8,draft_steps=5,mode={mode})"
            assert steps(run(backend, spec, prompt, **values)) == steps(plain)
