"""Tests of drafts by some layers of the target: always exact, except for the lossy methods."""

import numpy as np
import pytest
from small_models import deep, engine, serve

from drafting import Request, certain, reply_to
from paradecode.core.decoder import Forward, ModelFacts
from paradecode.core.errors import DecoderError
from paradecode.core.layers import Half
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.drafters.layer_skip import (
    EarlyExits,
    LayerSearch,
    LayerSkip,
    Swift,
    runs_of,
    spread,
)
from paradecode.methods.draft.loop import assemble
from paradecode.methods.draft.source import Source
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.specs import parse

DEEP = deep()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_layers_are_always_right(temperature):
    spec = "layer-skip(skip=0.0,width=1,budget=fixed)"
    (sequence,) = serve(engine(DEEP), [spec], temperature=temperature, ignore_eos=True)
    assert sequence.stats.accepted == sequence.stats.drafted
    assert sequence.stats.forwards == -(-(32 - 1) // 9) + 1  # The prompt's forward has no draft.


def test_swift_finds_the_halves_that_do_not_matter():
    """The search finds the sub-layers that change nothing; the score counts those left out."""
    useless = {7, 14, 16, 17, 18, 19, 25, 29, 30}
    search = LayerSearch(20, 0.25)
    assert search.skipped == len(useless)
    start, sets = None, set()
    for _ in range(300):
        kept = search.candidate()
        assert (~kept).sum() == 9
        assert kept[:2].all()  # The first layer
        assert kept[-2:].all()  # and the last one, whole.
        score = len(useless - set(np.flatnonzero(kept).tolist())) / len(useless)
        start = score if start is None else start
        search.book(kept, score)
        sets.add(kept.tobytes())
    assert search.score > start
    assert search.score >= 0.5
    assert len(sets) > 250
    assert any(isinstance(layer, Half) for layer in search.layers)
    assert search.settled(300)


def test_swift_starts_with_every_second_layer_and_stops_when_good():
    search = LayerSearch(9, 0.45)
    assert search.skipped == 6
    assert search.layers == (0, 2, 4, 6, 7, 8)
    search.book(search.candidate(), 0.96)
    assert search.settled(1000)
    # An odd number: of the last of these layers only the attention is left out.
    assert LayerSearch(9, 0.5).layers == (0, 2, 4, 6, Half(7, "mlp"), 8)
    assert LayerSearch(6, 0.75).layers == (0, 4, 5)  # After every second layer, those between them.


def test_what_a_set_runs():
    kept = np.array([1, 1, 0, 1, 1, 0, 0, 0, 1, 1], bool)
    assert runs_of(kept) == (0, Half(1, "mlp"), Half(2, "attention"), 4)


@pytest.mark.parametrize(("layers", "skip"), [(1, 0.9), (2, 0.45), (3, 0.9), (30, 0.9)])
def test_swift_keeps_the_first_and_the_last_layer(layers, skip):
    search = LayerSearch(layers, skip)
    assert {0, layers - 1} <= {layer for layer in search.layers if isinstance(layer, int)}
    assert search.settled(1000) == (layers <= 3)


def test_a_draft_of_halves_costs_its_share():
    class Seq:
        def about(self, model):
            return ModelFacts(layers=4, hidden_size=100, vocab_size=1200)  # The head: one layer.

        def step_seconds(self, rows):
            return 5.0

    mixed = Source(layers=(0, Half(1, "attention"), Half(1, "mlp"), Half(2, "mlp")))
    assert mixed.seconds(Seq())(1) == pytest.approx(2 + 2 / 3 + 1)
    assert mixed.last == 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_halves_that_are_all_are_always_right(temperature):
    """A draft with all sub-layers is the target itself, so every draft token is accepted."""

    class Halved(LayerSkip):
        def propose(self, seq, limit):
            layers = tuple(Half(n, part) for n in range(6) for part in ("attention", "mlp"))
            tree = yield from self.grow(seq, limit, Source(layers=layers), 1)
            return tree

    (sequence,) = serve(
        engine(DEEP), [lambda: assemble("halved", Halved(), {})],
        temperature=temperature, ignore_eos=True,
    )  # fmt: skip
    assert sequence.stats.drafted > 20
    assert sequence.stats.accepted == sequence.stats.drafted


FACTS = ModelFacts(layers=10, hidden_size=100, vocab_size=1200)


def test_del_takes_the_first_exit_and_long_drafts_when_all_are_right():
    exits = EarlyExits((1, 5, 8))
    for _ in range(200):
        exits.update(np.ones((3, 4), bool), np.full((3, 4), 0.8))
    layer, length, threshold = exits.best(FACTS, 8)
    assert (layer, length) == (1, 8)
    assert 0.5 < threshold < 0.8


def test_del_does_not_draft_when_no_exit_is_right():
    exits = EarlyExits((1, 5, 8))
    for _ in range(200):
        exits.update(np.zeros((3, 4), bool), np.full((3, 4), 0.3))
    assert (exits.best(FACTS, 8)[1], exits.best(FACTS, 8, rests=False)[1]) == (0, 8)


def test_del_weighs_agreement_against_depth():
    exits = EarlyExits((1, 5, 8))
    right = np.array([[False] * 10, [True] * 9 + [False], [True] * 10])
    for _ in range(100):
        exits.update(right, np.full((3, 10), 0.5))
    assert (exits.best(FACTS, 4)[0], exits.best(FACTS, 4, rests=False)[:2]) == (5, (5, 4))


def test_partial_forwards_do_not_count_as_verifications():
    (sequence,) = serve(engine(DEEP), ["layer-skip(budget=fixed)"], ignore_eos=True)
    stats = sequence.stats
    assert stats.drafted == sum(len(step.tree) for step in sequence.trace)
    assert stats.forwards == len(sequence.trace)
    assert stats.other_model_seconds > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_swift_scores_a_set_by_the_tokens_it_would_have_chosen(temperature):
    """A set's score is the share of the last tokens that it would choose; a full set scores 1."""
    scores = []

    class Probe:
        def decode(self, seq):
            while not seq.finished:
                reply = yield Forward(seq.pending)
                seq.commit(coupled(seq, EMPTY, reply))
                if len(seq.output) == 20:
                    for kept in (np.ones(12, bool), np.array([1, 1, *[0] * 8, 1, 1], bool)):
                        score = yield from Swift(window=16)._matchness(seq, kept)
                        scores.append(score)

    serve(engine(deep(share=1.0)), [Probe], temperature=temperature, ignore_eos=True)
    assert scores[0] == 1.0
    assert scores[1] < 1.0


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


def committed(first: tuple, second: tuple, third: tuple | None) -> None:
    """Commit the second and the third token by some of the layers, then run a third forward."""

    class Careless:
        def decode(self, seq):
            reply = yield Forward(seq.pending)
            for layers in (first, second):
                seq.commit(coupled(seq, EMPTY, reply))
                reply = yield Forward(seq.pending, layers=layers)
            seq.commit(coupled(seq, EMPTY, reply))
            yield Forward(seq.pending, layers=third)

    serve(engine(DEEP), [Careless], max_tokens=4, ignore_eos=True)


ATTENTIONS = tuple(Half(layer, "attention") for layer in range(6))
MLPS = tuple(Half(layer, "mlp") for layer in range(6))


@pytest.mark.parametrize(("first", "second", "third"), [
    ((0, Half(1, "mlp"), 2), (0, 2), (0, 1)),
    ((0, Half(1, "mlp"), 2), (0, 2), (0, Half(1, "attention"))),
    (MLPS, MLPS, (0,)),
    (MLPS, (0, 1), (0,)),  # What holds nothing does not come to hold what later rows have.
    ((), (0, 1), (0,)),
    (MLPS, MLPS, None),
])  # fmt: skip
def test_rows_without_a_layers_attention_do_not_hold_its_keys(first, second, third):
    with pytest.raises(DecoderError, match="layers"):
        committed(first, second, third)


@pytest.mark.parametrize(("first", "second", "third"), [
    ((0, Half(1, "mlp"), 2), (0, 2), (0, Half(1, "mlp"), 2)),
    ((0, Half(1, "attention")), (0, 1), (0, 1, *MLPS)), (MLPS, (), MLPS),
    (ATTENTIONS, (*ATTENTIONS, *MLPS), tuple(range(6))),
])  # fmt: skip
def test_an_mlp_needs_no_keys_and_attention_leaves_its_own(first, second, third):
    with pytest.raises(DecoderError, match="before the sequence was finished"):  # All ran.
        committed(first, second, third)


def test_prefixes_of_some_layers_are_not_reused():
    eng = engine(DEEP)
    for _ in range(2):
        serve(eng, ["unified-layer-skip"], tuple(range(1, 20)), max_tokens=40, ignore_eos=True)
    text = serve(eng, ["greedy"], tuple(range(1, 20)), max_tokens=40, ignore_eos=True)[0]
    fresh = serve(engine(DEEP), ["greedy"], tuple(range(1, 20)), max_tokens=40, ignore_eos=True)[0]
    assert text.output == fresh.output
    assert text.cached_tokens <= 19


def test_unified_layer_skipping_leaves_layers_out_behind_the_prompt():
    class Twelve(Request):
        def about(self, model="target"):
            return ModelFacts(layers=12, hidden_size=1, vocab_size=32)

    seq = Twelve([1, 2, 3], max_tokens=4)
    steps, layers = parse("unified-layer-skip(speedup=3)")().decode(seq), []
    forward = next(steps)
    while not seq.finished:
        layers.append(forward.layers)
        try:
            forward = steps.send(reply_to(seq, forward.tree, certain(lambda text: 5)))
        except StopIteration:
            break
    assert layers == [None, *[spread(12, 4)] * 3]
