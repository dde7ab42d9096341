"""Dream's sampler follows its time schedule, number by number."""

import numpy as np
import pytest
from canvases import offsets, run, toy

from paradecode.methods.canvas.policies.base import times
from paradecode.methods.specs import parse


def reference_counts(masks: int, steps: int) -> list[int]:
    """Return how many tokens the model's script commits in each step, zeros included."""
    torch = pytest.importorskip("torch")
    t = torch.linspace(1, 1e-3, steps + 1)
    counts, left = [], masks
    for step in range(steps):
        share = torch.tensor(float(left)) * (1 - t[step + 1] / t[step])
        counts.append(int(share) if step < steps - 1 else left)
        left -= counts[-1]
    return counts


@pytest.mark.parametrize(
    ("masks", "steps"), [(24, 24), (24, 12), (24, 7), (20, 1), (9, 40), (24, 25)]
)
def test_counts_are_those_of_the_script(masks: int, steps: int) -> None:
    counts = reference_counts(masks, steps)
    for score in ("entropy", "maskgit_plus", "topk_margin"):
        made = run(toy("full"), f"dream(score={score},steps={steps})", max_tokens=masks)
        assert [len(step) for step in offsets(made)] == [n for n in counts if n]


def test_one_step_per_token_starts_with_nothing_and_ends_with_two() -> None:
    """The script's first forward commits nothing and its last commits two; `even` avoids both."""
    for masks in (16, 24, 32):
        counts = reference_counts(masks, masks)
        assert (counts[0], counts[-1]) == (0, 2)
        made = run(toy("full"), "dream", max_tokens=masks)
        assert [len(step) for step in offsets(made)] == [1] * (masks - 2) + [2]
        assert made.forwards == masks - 1


def test_times_round_as_torch_does() -> None:
    """Times equal those of torch to the last bit, and so does every count of a schedule."""
    torch = pytest.importorskip("torch")
    for steps in (1, 2, 3, 7, 16, 33, 64, 100, 256):
        expected = torch.linspace(1, 1e-3, steps + 1).numpy()
        np.testing.assert_allclose(times(steps, 1e-3), expected, rtol=0, atol=1.2e-7)
    time = times(256, 1e-3)
    left, counts = 256, []
    for step in range(255):
        counts.append(int(np.float32(left) * (np.float32(1) - time[step + 1] / time[step])))
        left -= counts[-1]
    assert [*counts, left] == reference_counts(256, 256)


def test_origin_reveals_each_mask_with_the_probability_of_the_step() -> None:
    first = []
    for seed in range(60):
        made = run(toy("full"), "dream(score=origin,steps=4)", max_tokens=24, seed=seed)
        assert sum(map(len, offsets(made))) == 24
        assert made.forwards <= 4
        first.append(len(offsets(made)[0]))
    assert abs(np.mean(first) / 24 - 0.25) < 0.04
    assert len(set(first)) > 3


def test_noise_of_the_ranking() -> None:
    """Little noise keeps the order of the ranking; much noise makes it a draw by the seed."""
    plain = run(toy("full"), "dream", seed=1)
    assert offsets(run(toy("full"), "dream(alg_temp=1e-9)", seed=1)) == offsets(plain)
    wild = [offsets(run(toy("full"), "dream(noise=1e6)", seed=seed)) for seed in (1, 1, 2)]
    assert wild[0] == wild[1] != wild[2]
    assert wild[0] != offsets(plain)


def test_whole_canvas_is_eligible_unless_blocks_are_asked_for() -> None:
    assert run(toy("full"), "dream(score=random)", seed=5).trace[0].canvas.window == (0, 24)
    made = run(toy("full"), "dream(blocks=fixed,block_length=8)")
    assert [step.canvas.window for step in made.trace[:1]] == [(0, 8)]
    assert parse("dream").method.parameters[-2].default == "full"
