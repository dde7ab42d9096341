"""A replay drafts with heads as the engine does, from hidden states of the target's prefill."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from workloads import CURVE, drafts, engine_runs, items, recording_of, toy

from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Array, DraftPace, Item, Network
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.methods.specs import parse
from paradecode.models.weights import Tensor
from paradecode.testing.draft_heads import KINDS, knowing_head, random_head
from paradecode.testing.toy import ToyBackend, toy_config
from paradecode_lab.measure.replay import Recording, play
from paradecode_lab.measure.replay.player import replayed

PARAMS = (SamplingParams(seed=5), SamplingParams(temperature=0.8, seed=11))
ITEMS = items(3, tokens=32)
METHOD = {"eagle3": "eagle", "medusa-own": "medusa", "clover-2": "clover"}
BEHIND = ("kangaroo", "m2r2")
"""Heads that draft with layers of the model."""
CONFIG = toy()[TARGET].config


@cache
def recording(params: int) -> Recording:
    return recording_of(toy(), ITEMS, PARAMS[params])


def target() -> Engine:
    return Engine(toy(), curve=CURVE)


@pytest.fixture(autouse=True)
def heads_take_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the seconds of heads, which are otherwise measured and decide how deep a head drafts."""

    def book(pace: DraftPace, seconds: float, levels: int) -> None:
        pace.draft, pace.level = 2e-4, 5e-5

    def book_rows(pace: DraftPace, seconds: float, rows: int) -> None:
        pace.row = 1e-6

    monkeypatch.setattr(DraftPace, "book", book)
    monkeypatch.setattr(DraftPace, "book_rows", book_rows)


def same(spec: str, params: int) -> bool:
    ran = engine_runs(toy(), ITEMS, PARAMS[params], spec)
    played = [sequence for sequence, _, _ in
              replayed(recording(params), parse(spec), CURVE, target=target())]  # fmt: skip
    return [drafts(a) for a in ran] == [drafts(b) for b in played]


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("params", "budget"), [(0, "fixed"), (1, "auto")], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in BEHIND])
def test_every_step_is_the_engines(kind: str, params: int, budget: str, tmp_path: Path) -> None:
    folder = random_head(kind, CONFIG, tmp_path)
    spec = f"{METHOD.get(kind, kind)}(head='{folder}',budget={budget})"
    assert same(spec, params)
    outcome = play(recording(params), spec, target=target())
    assert outcome.exact


@pytest.mark.parametrize("name", ["eagle", "suffix+eagle"])
def test_a_head_that_knows_is_accepted_in_replay_too(name: str, tmp_path: Path) -> None:
    spec = f"{name}(head='{knowing_head(CONFIG, tmp_path)}',budget=fixed)"
    assert same(spec, 0)
    outcome, plain = (play(recording(0), each, target=target()) for each in (spec, "greedy"))
    ran = engine_runs(toy(), ITEMS, PARAMS[0], spec)
    assert outcome.totals().forwards == sum(sequence.stats.forwards for sequence in ran)
    assert outcome.totals().forwards < plain.totals().forwards / 2
    assert outcome.totals().seconds > 0


class Elsewhere(ToyBackend):
    """A backend of its own for heads, which counts how many networks it ran."""

    ran = 0

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        self.ran += 1
        return super().apply(network, items)


def test_a_head_runs_where_the_engine_runs_heads(tmp_path: Path) -> None:
    spec, place = f"eagle(head='{knowing_head(CONFIG, tmp_path)}',budget=fixed)", Elsewhere()
    beside = play(recording(0), spec, target=Engine(toy(), curve=CURVE, heads=place))
    assert beside.totals().forwards == play(recording(0), spec, target=target()).totals().forwards
    assert place.ran > beside.totals().forwards


@pytest.mark.parametrize("kind", BEHIND)
def test_a_head_behind_layers_of_the_model_runs_in_the_engine_only(kind, tmp_path):
    spec = f"{kind}(head='{random_head(kind, CONFIG, tmp_path)}')"
    with pytest.raises(InvalidInput, match="runs layers to draft"):
        play(recording(0), spec, target=target())


def test_a_head_needs_the_model_that_was_recorded(tmp_path: Path) -> None:
    spec = f"eagle(head='{knowing_head(CONFIG, tmp_path)}')"
    with pytest.raises(InvalidInput, match="give the model"):
        play(recording(0), spec)
    other = Engine({TARGET: ToyBackend(toy_config(vocab_size=60, context_length=200))}, curve=CURVE)
    with pytest.raises(InvalidInput, match="context_length 200, not 400: record it anew"):
        play(recording(0), spec, target=other)
    made, engine = recording(0), target()
    trained = replace(made, model=replace(made.model, weights="0" * 64))
    play(trained, spec, target=engine)  # An engine without weights cannot compare them.
    engine.weights = {"embed": Tensor(np.zeros((4, 4), np.float32), (4, 4))}
    with pytest.raises(InvalidInput, match="weights"):
        play(trained, spec, target=engine)
    play(made, spec, target=engine)  # A recording of an older version cannot compare them either.


def test_wrong_states_would_be_noticed(tmp_path: Path) -> None:
    """The comparison of drafts can fail: a head that reads other states drafts other tokens."""
    spec = f"eagle(head='{random_head('eagle', CONFIG, tmp_path)}',budget=fixed)"
    first, *others = recording(0).requests
    output = first.output.copy()
    output[len(output) // 2] = (output[len(output) // 2] + 1) % 60
    planted = replace(recording(0), requests=(replace(first, output=output), *others))
    ran = engine_runs(toy(), ITEMS, PARAMS[0], spec)
    played = [s for s, _, _ in replayed(planted, parse(spec), CURVE, target=target())]
    assert [drafts(a) for a in ran] != [drafts(b) for b in played]
