"""Learn2PD and EoTP: limits of the filter, and what a cut at an end of text may change."""

from pathlib import Path

import numpy as np
import pytest
from canvases import ATTENTION, EOS, run, steps, toy
from views import canvas_of, view_of

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.policies.learned import Learn2PD
from paradecode.methods.specs import parse
from paradecode.testing.network_reference import apply_network
from paradecode.testing.toy import ToyBackend, toy_config
from paradecode.testing.trained_parts import constant_filter, random_filter

LOOP = "block_length=8"


def saved(path: Path, logit: float) -> Path:
    constant_filter(logit).save(path)
    return path


def test_forwards_lie_between_the_two(tmp_path: Path) -> None:
    random_filter().save(tmp_path / "filter")
    counts = [
        run(toy("full"), f"learn2pd(filter='{tmp_path}/filter',sure={sure},{LOOP})").forwards
        for sure in (0.0, 0.3, 0.7, 1.0)
    ]
    assert counts == sorted(counts)
    assert 3 == counts[0] < counts[1] < 24 == counts[-1]


def test_the_filter_reads_its_own_block(tmp_path: Path) -> None:
    """The filter judges a longer window in pieces; missing positions count as decided."""
    trained = random_filter(block=4)
    trained.save(tmp_path / "filter")
    confidence = np.random.default_rng(3).random(10)
    policy = Learn2PD(filter=str(tmp_path / "filter"))
    policy.start(canvas_of(10))
    asked = policy.prepare(view_of(confidence))
    given = next(asked).inputs["confidence"]
    assert np.allclose(given, [confidence[:4], confidence[4:8], [*confidence[8:], 1, 1]])
    made = apply_network(trained.network, [{"confidence": given}])[0]
    with pytest.raises(StopIteration):
        asked.send(made)
    assert np.array_equal(policy.chances, made.ravel()[:10])


def with_ends(kind: str, seed: int) -> ToyBackend:
    """Return a model with such varied predictions that it often ends a text."""
    return ToyBackend(toy_config(vocab_size=9, **ATTENTION[kind]), seed=seed, surprise=1000)


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("when", ["decided", "guessed"])
def test_what_is_decided_stays_and_the_canvas_only_shrinks(kind: str, when: str) -> None:
    cuts = 0
    for seed, prompt in enumerate(((5, 6, 7), (4,), (6, 4, 4, 7, 5))):
        spec = f"eotp(when={when},{LOOP})"
        made = run(with_ends(kind, seed), spec, prompt, 24, ignore_eos=False)
        shown, text = steps(made), dict[int, int]()
        lengths = [step.length for step in shown]
        assert lengths == sorted(lengths, reverse=True)
        for step in shown:
            assert not step.revoked
            text |= zip(step.offsets, step.tokens, strict=True)
        assert made.output == [text[at] for at in range(len(made.output))]
        cuts += lengths[-1] < 24
    assert cuts > 0


@pytest.mark.parametrize("base", ["static", "threshold(threshold=0.3)"])
def test_rows_see_nothing_of_what_is_cut_so_the_text_is_the_same(base: str) -> None:
    """Causal rows do not see what is cut, so the text before the end does not change."""
    shorter = 0
    for seed in range(6):
        model = with_ends("causal", seed)
        name, _, inside = base.rstrip(")").partition("(")
        settings = ",".join(filter(None, (inside, "block_length=24")))
        plain = run(model, f"{name}({settings})", (5, 6), 24, ignore_eos=False)
        cut = run(model, f"eotp(base={base},block_length=24)", (5, 6), 24, ignore_eos=False)
        assert cut.output == plain.output
        assert cut.rows <= plain.rows
        shorter += cut.rows < plain.rows
    assert shorter > 0


def test_the_filter_cuts_unless_told_not_to(tmp_path: Path) -> None:
    always = saved(tmp_path / "always", 40.0)
    for seed in range(4):
        model = with_ends("full", seed)
        lengths = {}
        for end in ("decided", "guessed", "off"):
            spec = f"learn2pd(filter='{always}',end={end},block_length=8)"
            made = run(model, spec, (5, 6, 7), 24, ignore_eos=False)
            lengths[end] = steps(made)[0].length
            first = made.output.index(EOS) + 1 if EOS in made.output else len(made.output)
            assert len(made.output) == first
        assert lengths["off"] == 24 or steps(made)[-1].length == 24
        assert lengths["guessed"] <= lengths["decided"] <= 24


def test_an_end_that_may_be_revoked_is_none(tmp_path: Path) -> None:
    always = saved(tmp_path / "always", 40.0)
    for spec in ("eotp(base=remask)", f"learn2pd(filter='{always}',base=remask)"):
        with pytest.raises(InvalidInput, match="revoked"):
            parse(spec)
    parse(f"learn2pd(filter='{always}',base=remask,end=off)")
