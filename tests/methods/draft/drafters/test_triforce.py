"""Tests of TriForce: the keys that its middle level sees, its drafts, and their cost."""

import numpy as np
import pytest
from small_models import backend, deep, engine, permuted, serve

from paradecode.backends.interface import PAGE, Span
from paradecode.core.decoder import DRAFT, TARGET, ModelFacts
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits, Warp
from paradecode.core.sampling import SamplingParams
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.methods.draft.drafters import triforce
from paradecode.methods.draft.drafters.triforce import TwoLevels, chosen
from paradecode.methods.specs import parse
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.toy import ToyBackend, toy_config

MODEL, SMALL = deep(share=0.3), deep(share=0.2)
LONG = tuple(4 + (3 * i * i + i) % 70 for i in range(60))
FEW = "keys=32,recent=8,refresh=6,num_speculative_tokens=5,budget=fixed"


def literally_chosen(shares: list[float], keys: int, recent: int) -> list[int]:
    """Choose whole chunks: the first, then the best ones, and all keys after them."""
    end = 0
    while end + 8 <= len(shares) - recent:
        end += 8
    scored = sorted(range(0, end, 8), key=lambda at: (at > 0, -sum(shares[at : at + 8])))
    kept, left = list(range(end, len(shares))), keys - (len(shares) - end)
    for at in scored:
        if left >= 8:
            kept, left = kept + list(range(at, at + 8)), left - 8
    return sorted(kept)


def test_chunks_that_got_most_attention_stay():
    random = np.random.default_rng(0)
    for _ in range(200):
        count, keys, recent = random.integers(0, [120, 80, 60]).tolist()
        shares = random.random(count)
        early, end = chosen(shares, keys, recent)
        found = [*early.tolist(), *range(end, count)]
        assert found == literally_chosen(shares.tolist(), keys, recent)
        assert len(found) <= max(keys, recent + 7)


class Watched:
    """A decoder that records each verification's text, tree, and slots of early keys."""

    def __init__(self, spec: str) -> None:
        self.seen: list[tuple[list[int], object, list[int] | None]] = []
        self._spec = spec

    def __call__(self):
        decoder = parse(self._spec)()
        drafter, seen = decoder.drafter, self.seen
        propose = drafter.propose

        def proposed(seq, limit):
            early, end = drafter._early, drafter._end
            tree = yield from propose(seq, limit)
            cached = len(seq.tokens) - len(seq.pending)
            slots = None if early is None else [*early.tolist(), *range(end, cached)]
            seen.append((seq.tokens.tolist(), tree, slots))
            return tree

        drafter.propose = proposed
        return decoder


def row(text: list[int], slots: list[int] | None, drafted: list[int]) -> Logits:
    """Return the target's logits after a draft whose rows attend only to these cached keys.

    The keys are of a whole forward over all but the last token, which is the draft's first row.
    """
    model = backend(MODEL)
    model.reserve(16)
    cached, count = len(text) - 1, 1 + len(drafted)
    assert cached + count <= 16 * PAGE
    pages, at = np.arange(16, dtype=np.int32), np.arange(cached + count, dtype=np.int32)
    tokens = np.array([*text, *drafted], np.int32)
    before, behind = at[:cached], at[cached:]
    model.forward([Span(pages, tokens[:cached], before, before, 0, before[:0])])
    none, last = np.full(count, -1, np.int32), np.array([count - 1], np.int32)
    visible = None if slots is None else np.array(slots, np.int32)
    span = Span(pages, tokens[cached:], behind, none, cached, last, visible=visible)
    return model.forward([span])[0].logits


@pytest.mark.parametrize("guesses", [0, 1, 3])
def test_a_draft_is_what_the_target_says_with_few_keys(guesses):
    """A draft is what the target predicts with few keys, whatever the small model guesses."""
    watched = Watched(f"triforce(guesses={guesses},{FEW})")
    plain, sequence = serve(
        engine(MODEL, SMALL), ["greedy", watched], LONG, max_tokens=40, ignore_eos=True
    )
    assert sequence.output == plain.output
    drafts = 0
    for text, tree, slots in watched.seen[2:]:
        assert slots is not None
        assert len(slots) < len(text) - 1
        wanted: list[int] = []
        for _ in range(len(tree)):
            wanted.append(int(row(text, slots, wanted).argmax()[0]))
        assert tree.tokens.tolist() == wanted
        drafts += len(wanted)
    assert drafts > 20
    assert 0 < sequence.stats.accepted < sequence.stats.drafted
    firsts = {tuple(at for at in slots if at < 48) for _, _, slots in watched.seen if slots}
    assert len(firsts) > 1  # Keys are chosen anew.


def attention_of_the_last(text: list[int]) -> np.ndarray:
    """Return float64 [n]: the last token's attention to each token, over all layers and heads."""
    model = backend(MODEL)
    model.reserve(16)
    at = np.arange(len(text), dtype=np.int32)
    tokens, pages = np.array(text, np.int32), np.arange(16, dtype=np.int32)
    (given,) = model.forward([Span(pages, tokens, at, at, 0, at[:0], attention=at[-1:])])
    return sum(weights[0].sum(0, np.float64) for weights in given.attention.values())


def test_the_chosen_keys_got_most_of_the_attention_of_the_last_token():
    """The chosen keys got most attention, also after several rows and during verifications."""
    eng, watched = engine(MODEL), Watched(f"triforce({FEW.replace('refresh=6', 'refresh=1')})")
    prompt = (*LONG, 4, 9, 6, 30, 17, 8)  # 64 of them are cached, and nothing asks for these.
    serve(eng, ["greedy"], prompt, max_tokens=1)
    (sequence,) = serve(eng, [watched], prompt, max_tokens=24, ignore_eos=True)
    assert len(sequence.trace[0].tree) == 0
    first, drafted = len(prompt) - 64, 0
    assert first > 1
    for (text, tree, _), (_, _, slots) in zip(watched.seen, watched.seen[1:]):
        cached = len(text) - first
        shares = attention_of_the_last(text)[:cached]
        assert [at for at in slots if at < cached] == literally_chosen(shares.tolist(), 32, 8)
        first, drafted = 1, drafted + len(tree)
    assert drafted > 10


def test_with_all_keys_every_draft_is_right():
    spec = "triforce(keys=4096,guesses=0,num_speculative_tokens=5,budget=fixed)"
    for temperature in (0.0, 0.8):
        (sequence,) = serve(
            engine(MODEL), [spec], LONG, temperature=temperature, max_tokens=24, ignore_eos=True
        )
        assert sequence.stats.accepted == sequence.stats.drafted > 0


def test_a_small_model_that_is_right_saves_forwards_of_the_middle_level():
    ran, pace = {}, {}
    for guesses, small in (
        (0, MODEL),
        (1, MODEL),
        (4, MODEL),
        (1, tiny_checkpoint("qwen3", seed=1)),
    ):
        eng = engine(MODEL, small)
        spans: list[int] = []
        forward = eng.models[TARGET].forward
        eng.models[TARGET].forward = lambda s, run=forward, n=spans: n.append(len(s)) or run(s)
        spec = f"triforce(keys=4096,guesses={guesses},num_speculative_tokens=5,budget=fixed)"
        decoder = parse(spec)()
        (sequence,) = serve(eng, [lambda made=decoder: made], LONG, max_tokens=48, ignore_eos=True)
        pace[guesses, small is MODEL] = decoder.drafter._pace
        ran[guesses, small is MODEL] = len(spans) - sequence.stats.forwards, sequence.output
    assert len({tuple(output) for _, output in ran.values()}) == 1
    middle = {key: count for key, (count, _) in ran.items()}
    assert middle[1, True] < 0.7 * middle[0, True]
    assert middle[4, True] < 0.5 * middle[0, True]
    assert middle[1, True] < middle[1, False] <= middle[0, True]
    # Of five rows in a draft, 5, 3 and 1 need a forward; those before count a tenth less each.
    assert pace[0, True] == pytest.approx(1.0)
    assert 0.5 < pace[1, True] < 0.7
    assert pace[4, True] < 0.25
    assert pace[1, False] > 0.7


def test_tokens_are_drawn_from_the_rows_with_few_keys():
    watched = Watched(f"triforce(guesses=1,verifier=rejection,{FEW})")
    serve(engine(MODEL, SMALL), [watched], LONG, temperature=0.9, max_tokens=16, ignore_eos=True)
    drawn = 0
    for text, tree, slots in watched.seen[2:]:
        for node, law in tree.drawn.items():
            q = row(text, slots, tree.tokens_to(node)).probabilities(Warp(0.9))[0]
            assert np.allclose(law.probabilities, q[law.ids], atol=1e-9)
            drawn += 1
    assert drawn > 10


def test_the_small_model_sees_the_first_and_the_latest_keys(monkeypatch):
    monkeypatch.setattr(triforce, "SINKS", 4)
    monkeypatch.setattr(triforce, "WINDOW", 16)
    eng, saw = engine(MODEL, SMALL), []
    forward = eng.models[DRAFT].forward
    eng.models[DRAFT].forward = lambda spans: (
        saw.extend(None if s.visible is None else s.visible.tolist() for s in spans)
        or forward(spans)
    )
    plain, sequence = serve(
        eng, ["greedy", f"triforce(guesses=2,{FEW})"], LONG, max_tokens=24, ignore_eos=True
    )
    assert sequence.output == plain.output
    seen = [slots for slots in saw if slots is not None]
    assert seen
    for slots in seen:
        assert slots == [0, 1, 2, 3, *range(slots[-1] - 15, slots[-1] + 1)]


def curve(*seconds: float) -> CostCurve:
    """Return costs at 32 and 64 keys, where each further row costs a tenth of the first one."""
    return CostCurve((1, 11), (32, 64), tuple((first, 2 * first) for first in seconds))


def test_rows_cost_by_the_keys_that_they_see(monkeypatch):
    monkeypatch.setattr(triforce, "SINKS", 4)
    monkeypatch.setattr(triforce, "WINDOW", 28)
    config = toy_config(vocab_size=96, context_length=512)
    eng = Engine({TARGET: ToyBackend(config), DRAFT: ToyBackend(config)}, Limits(kv_tokens=4096))
    eng.load.curve, eng.load.others[DRAFT] = curve(10.0, 20.0), curve(1.0, 5.0)
    settings = SamplingParams.from_mapping({"max_tokens": 32, "ignore_eos": True})
    seq = eng.add(GenerationRequest(np.array(LONG + LONG[:6], np.int32), parse("greedy"), settings))
    for _ in range(3):
        eng.step()
    near = lambda value: pytest.approx(value, abs=0.01)  # noqa: E731  # Beside forwards.
    assert seq.step_seconds(1) == seq.step_seconds(1, keys=1000) == near(20.0)
    assert seq.step_seconds(1, keys=32) == near(10.0)
    assert seq.step_seconds(3, keys=32) == near(12.0)
    assert seq.step_seconds(1, DRAFT) == near(5.0)
    assert seq.step_seconds(1, DRAFT, 32) == near(1.0)
    few = np.arange(32, dtype=np.int32)
    for guesses, visible, wanted in (
        (0, few, 10.0), (0, None, 20.0), (2, few, 12.0 + 2 * 1.0), (2, None, 24.0 + 2 * 1.0),
    ):  # fmt: skip
        rows = TwoLevels(seq, 5, guesses, visible, False, 0.5)
        assert rows.seconds(1) == near(0.5 * wanted)


def test_wrong_guesses_fit_into_the_memory_of_a_draft():
    """Wrong guesses fit into a draft's memory, although each needed row brings 16 guessed ones."""
    eng = engine(MODEL, tiny_checkpoint("qwen3", seed=1), draft_tokens=40)
    spec = "triforce(keys=4096,guesses=16,num_speculative_tokens=40,budget=fixed)"
    plain, sequence = serve(eng, ["greedy", spec], LONG, max_tokens=24, ignore_eos=True)
    assert sequence.output == plain.output
    assert max(len(step.tree) for step in sequence.trace) == 2


def test_what_does_not_fit_is_refused():
    order = np.random.default_rng(0).permutation(96)
    vocabulary = Vocabulary(
        order.astype(np.int32), np.argsort(order).astype(np.int32), np.arange(97)
    )
    with pytest.raises(InvalidInput, match="own tokens"):
        serve(
            engine(MODEL, permuted(tiny_checkpoint(), order), vocabulary), ["triforce(guesses=1)"]
        )
    with pytest.raises(InvalidInput, match="draft_model"):
        serve(engine(MODEL), ["triforce(guesses=1)"])
    assert parse("triforce").method.models == ()
    assert parse("triforce(guesses=1)").method.models == (DRAFT,)
    for spec in ("triforce", "suffix+triforce"):  # Long before attention is requested.
        eng = engine(MODEL)
        eng.models[TARGET].gives_attention = False
        with pytest.raises(InvalidInput, match="attention weights"):
            serve(eng, [f"{spec}(keys=4096)"], max_tokens=1)
    facts = ModelFacts(layers=80, hidden_size=8, vocab_size=8, heads=64, gives_attention=True)
    triforce.check(facts, 13107, 8)
    triforce.check(facts, 13108, 13108)
    with pytest.raises(InvalidInput, match="at most 13107 tokens, not 13108"):
        triforce.check(facts, 13108, 8)


def test_a_text_that_becomes_too_long_keeps_the_keys_chosen_last(monkeypatch):
    """A text that becomes too long keeps the keys chosen last, and outputs stay plain.

    The limit applies to all requests of a step together.
    """
    config = MODEL[0]
    monkeypatch.setattr(triforce, "MOST", 4 * config.layers * config.heads * 80)
    spec = f"triforce({FEW})"
    watched = Watched(spec)
    (plain,) = serve(engine(MODEL), ["greedy"], LONG, max_tokens=60, ignore_eos=True)
    (sequence,) = serve(engine(MODEL), [watched], LONG, max_tokens=60, ignore_eos=True)
    assert sequence.output == plain.output
    early = [[at for at in slots if at < 64] for text, _, slots in watched.seen if len(text) > 90]
    assert len(early) > 2
    assert early == early[:1] * len(early)
    assert all(len(tree) for text, tree, _ in watched.seen if 90 < len(text) < 110)
    for specs, asks in (([spec], True), (["greedy", spec], False)):  # Two: 40 keys each.
        eng = engine(MODEL)
        forward, asked = eng.models[TARGET].forward, []
        eng.models[TARGET].forward = lambda spans, run=forward, notes=asked: (
            notes.extend(span.attention is not None for span in spans) or run(spans)
        )
        together = serve(eng, specs, LONG, max_tokens=20, ignore_eos=True)
        assert all(one.output == plain.output[:20] for one in together)
        assert any(asked) == asks
    with pytest.raises(InvalidInput, match="at most 80 tokens, not 81"):
        serve(engine(MODEL), [spec], LONG + LONG[:21], max_tokens=4)
