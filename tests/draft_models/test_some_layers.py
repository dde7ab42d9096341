"""Some layers of the target draft: exact whatever is skipped, lossy only where it says so."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import deep, engine, serve

from paradecode.core.errors import DecoderError
from paradecode.core.request import Forward
from paradecode.core.sequence import ModelFacts
from paradecode.core.tree import EMPTY
from paradecode.decoders.autoregressive.drafters.del_ import Exits
from paradecode.decoders.autoregressive.drafters.layer_skip import first, spread
from paradecode.decoders.autoregressive.drafters.swift import Search
from paradecode.decoders.autoregressive.verify import coupled
from paradecode.decoders.registry import parse
from paradecode.models.tiny import tiny_checkpoint

DEEP = deep()
METHODS = (
    "layer-skip",
    "layer-skip(pattern=exit,skip=0.5,width=1)",
    "layer-skip(skip=0.95,num_speculative_tokens=20,budget=fixed)",
    "swift(window=4,interval=1,skip=0.4)",
    "del",
)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_method_gives_the_plain_output_in_one_batch(temperature):
    plain, *others = serve(engine(DEEP), ["greedy", *METHODS], temperature=temperature)
    for sequence, spec in zip(others, METHODS, strict=True):
        assert sequence.output == plain.output, spec


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_layers_are_always_right(temperature):
    spec = "layer-skip(skip=0.0,width=1,budget=fixed)"
    (sequence,) = serve(engine(DEEP), [spec], temperature=temperature, ignore_eos=True)
    assert sequence.stats.accepted == sequence.stats.drafted
    assert sequence.stats.forwards == -(-(32 - 1) // 9) + 1  # The prompt's forward has no draft.


def test_layers_that_change_little_can_be_skipped():
    eng = engine(DEEP)
    plain, *others = serve(eng, ["greedy", "layer-skip", "swift", "del"], ignore_eos=True)
    for sequence in others:
        assert sequence.stats.forwards < plain.stats.forwards


def test_patterns():
    assert spread(10, 4) == (0, 3, 6, 9)
    assert spread(10, 1) == (0,)
    assert first(10, 3) == (0, 1, 2)
    assert spread(6, 6) == first(6, 6) == tuple(range(6))


def test_swift_finds_the_layers_that_do_not_matter():
    """Agreement counts the useless layers that a set leaves out."""
    useless = {3, 7, 8, 9, 14}
    search = Search(20, 0.25)
    assert search.skipped == 5
    start = None
    for _ in range(300):
        kept = search.candidate()
        assert kept.sum() == 15
        assert kept[0]
        assert kept[-1]
        score = len(useless - set(np.flatnonzero(kept).tolist())) / len(useless)
        start = score if start is None else start
        search.book(kept, score)
    assert search.score > start
    assert search.score >= 0.6
    assert search.settled(300)


def test_swift_starts_with_every_second_layer_and_stops_when_good():
    search = Search(9, 0.45)
    assert search.layers == (0, 2, 4, 6, 8)
    search.book(search.candidate(), 0.96)
    assert search.settled(1000)


@pytest.mark.parametrize(("layers", "skip"), [(1, 0.9), (2, 0.45), (3, 0.9), (30, 0.9)])
def test_swift_keeps_the_first_and_the_last_layer(layers, skip):
    search = Search(layers, skip)
    assert {0, layers - 1} <= set(search.layers)
    assert len(search.layers) >= min(layers, 2)


FACTS = ModelFacts(layers=10, hidden_size=100, vocab_size=1200)


def test_del_takes_the_first_exit_and_long_drafts_when_all_are_right():
    exits = Exits((1, 5, 8))
    for _ in range(200):
        exits.update(np.ones((3, 4), bool), np.full((3, 4), 0.8))
    layer, length, threshold = exits.best(FACTS, 8)
    assert (layer, length) == (1, 8)
    assert 0.5 < threshold < 0.8


def test_del_does_not_draft_when_no_exit_is_right():
    exits = Exits((1, 5, 8))
    for _ in range(200):
        exits.update(np.zeros((3, 4), bool), np.full((3, 4), 0.3))
    assert exits.best(FACTS, 8)[1] == 0


def test_del_weighs_agreement_against_depth():
    exits = Exits((1, 5, 8))
    right = np.array([[False] * 10, [True] * 9 + [False], [True] * 10])
    for _ in range(100):
        exits.update(right, np.full((3, 10), 0.5))
    assert exits.best(FACTS, 4)[0] == 5


def test_partial_forwards_do_not_count_as_verifications():
    (sequence,) = serve(engine(DEEP), ["layer-skip(budget=fixed)"], ignore_eos=True)
    stats = sequence.stats
    assert stats.drafted == sum(len(step.tree) for step in sequence.trace)
    assert stats.forwards == len(sequence.trace)
    assert stats.other_model_seconds > 0


def test_unified_layer_skipping_runs_fewer_layers_and_is_lossy():
    spec = parse("unified-layer-skip(speedup=2)")
    assert spec.method.guarantee == "lossy"
    eng = engine(DEEP)
    full, half, plain = serve(
        eng, ["unified-layer-skip(speedup=1)", spec, "greedy"], ignore_eos=True
    )
    assert full.output == plain.output
    assert len(half.output) == 32
    assert half.output[0] == plain.output[0]  # The prompt runs through all layers.


def test_rows_of_some_layers_cannot_be_read_by_the_others():
    class Careless:
        def decode(self, seq):
            reply = yield Forward(seq.pending)
            seq.commit(coupled(seq, EMPTY, reply))
            reply = yield Forward(seq.pending, layers=(0, 2))
            seq.commit(coupled(seq, EMPTY, reply))
            yield Forward(seq.pending)

    with pytest.raises(DecoderError, match="layers"):
        serve(engine(DEEP), [Careless], ignore_eos=True)


def test_prefixes_of_some_layers_are_not_reused():
    eng = engine(DEEP)
    for _ in range(2):
        serve(eng, ["unified-layer-skip"], tuple(range(1, 20)), max_tokens=40, ignore_eos=True)
    text = serve(eng, ["greedy"], tuple(range(1, 20)), max_tokens=40, ignore_eos=True)[0]
    fresh = serve(engine(DEEP), ["greedy"], tuple(range(1, 20)), max_tokens=40, ignore_eos=True)[0]
    assert text.output == fresh.output
    assert text.cached_tokens <= 19


def test_models_of_two_layers():
    eng = engine(tiny_checkpoint("qwen2"))
    plain, *others = serve(eng, ["greedy", *METHODS], temperature=0.5)
    assert all(sequence.output == plain.output for sequence in others)
