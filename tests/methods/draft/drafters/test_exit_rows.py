"""Tests of verifications that run only the layers after an early exit.

Their results equal those of whole verifications to the last bit, for fewer rows.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import PROMPT, deep, serve

from paradecode.backends import open_backend
from paradecode.core.decoder import TARGET, Attend, Forward, Store, TokenSequence, Verdict
from paradecode.core.errors import DecoderError
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.source import ExitRows
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.specs import parse
from paradecode.testing.draft_heads import random_head
from tiers import examples

LAYERS, EXIT = 6, 4
NONE = np.empty(0, np.int32)
FIRST, REST = tuple(range(EXIT)), tuple(range(EXIT, LAYERS))
DEEP = deep(LAYERS)
WIDE = DEEP[0].hidden_size
SHOWN = 3
"""Number of rows in such a draft: the pending token and two more."""


def engine(**limits: Any) -> Engine:
    backend = open_backend("native", *DEEP, dtype="q4", threads=1)
    return Engine({TARGET: backend}, Limits(**{"batch": 8, "kv_tokens": 4096, **limits}))


def run(decode: Callable[[Any], Any], eng: Engine | None = None, **params: Any) -> LiveSequence:
    class Decoder:
        def decode(self, seq: TokenSequence) -> Any:
            reply = yield Forward(seq.pending)
            seq.commit(coupled(seq, EMPTY, reply))
            yield from decode(seq)

    return serve(eng or engine(), [Decoder], ignore_eos=True, **params)[0]


def values(logits: Any) -> np.ndarray:
    rows, vocabulary = logits.shape
    return logits.gather(np.tile(np.arange(vocabulary, dtype=np.int32), (rows, 1)))


TREES = st.lists(st.tuples(st.integers(-1, 20), st.integers(1, 6)), max_size=9).map(
    lambda rows: TokenTree(
        [token for _, token in rows], [min(parent, n - 1) for n, (parent, _) in enumerate(rows)]
    )
)


def distinct(tree: TokenTree) -> TokenTree:
    """Return the tree without siblings that repeat an earlier sibling."""
    first = [tree.child(int(p), int(t)) for p, t in zip(tree.parents, tree.tokens)]
    return tree.select(np.array(first, int) == np.arange(len(tree)))


@examples(40)
@given(drafted=TREES.map(distinct), verified=TREES.map(distinct), pending=st.integers(1, 3))
def test_a_verification_of_some_layers_is_that_of_all(drafted, verified, pending):
    """Logits, states and stored rows equal those of a whole verification, in any drafting order."""
    seen: dict[str, Any] = {}

    def decode(seq: TokenSequence, joined: bool) -> Any:
        tokens = [7, 3, 9][:pending]
        seq.commit(Verdict(tokens, [0] * pending, (yield Forward(seq.pending)).logits))
        asked = Forward(seq.pending, tree=verified, hidden=(1, EXIT - 1, EXIT, -1))
        if joined:
            rows = ExitRows(EXIT, LAYERS, 64, (1, EXIT - 1))
            chain = TokenTree.chain(seq.pending)
            draft = Forward(NONE, tree=chain, layers=FIRST, hidden=rows.hidden)
            rows.add(draft, (yield draft))
            if len(drafted):
                last = np.full(len(drafted), len(chain) - 1, np.int32)
                draft = replace(draft, tree=drafted, under=last)
                rows.add(draft, (yield draft))
            reply = yield from rows.score(asked)
        else:
            reply = yield asked
        forwards = seq.forwards  # type: ignore[attr-defined]
        seq.commit(coupled(seq, verified, reply))
        after = yield Forward(seq.pending)
        seen[str(joined)] = values(reply.logits), reply.hidden, values(after.logits), forwards
        while not seq.finished:
            seq.commit(coupled(seq, EMPTY, after))
            if not seq.finished:
                after = yield Forward(seq.pending)

    outputs = [run(lambda seq, on=on: decode(seq, on)).output for on in (False, True)]
    assert outputs[0] == outputs[1]
    whole, joined = seen["False"], seen["True"]
    assert np.array_equal(whole[0], joined[0])
    assert whole[1].keys() == joined[1].keys()
    for layer, states in whole[1].items():
        assert np.array_equal(states, joined[1][layer]), layer
    assert np.array_equal(whole[2], joined[2])
    assert whole[3] == joined[3]


def joining(
    tokens: Callable[[np.ndarray], np.ndarray] = lambda pending: pending,
    tree: TokenTree = EMPTY,
    hidden: tuple[int, ...] = (EXIT - 1,),
    layers: tuple[int, ...] = REST,
    first: tuple[int, ...] = FIRST,
    draft: dict[str, Any] | None = None,
    **changes: Any,
) -> Callable[[TokenSequence], Any]:
    """Return a decoder that drafts 5, 6 and verifies wrongly; ``draft`` changes its forward."""

    def decode(seq: TokenSequence) -> Any:
        chain = TokenTree.chain([*seq.pending.tolist(), 5, 6])
        drafted = Forward(NONE, tree=chain, layers=first, hidden=hidden)
        yield replace(drafted, **draft or {})
        yield Forward(tokens(seq.pending), tree=tree, layers=layers, **changes)

    return decode


@pytest.mark.parametrize(("decode", "message"), [
    (joining(tree=TokenTree.chain([6])), "must be tentative rows"),
    (joining(tree=TokenTree.siblings([5, 5])), "must be tentative rows"),
    (joining(hidden=()), "asked for"), (joining(tokens=lambda pending: pending + 1), "own tokens"),
    (joining(layers=REST[1:]), "behind tentative rows"),
    (joining(layers=(EXIT - 1, *REST)), "behind tentative rows"),
    (joining(first=FIRST[1:], hidden=(EXIT - 1,)), "behind tentative rows"),
    (joining(resume=np.zeros((1, WIDE), np.float32)), "behind tentative rows"),
    (joining(attend=Attend.FULL), "behind tentative rows"),
    (joining(tree=TokenTree([5], [-1]), under=np.array([1])), "behind tentative rows"),
    (joining(draft={"resume": np.ones((SHOWN, WIDE), np.float32)}), "asked for"),
    (joining(draft={"embeddings": np.ones((SHOWN, WIDE), np.float32)}), "asked for"),
    (joining(draft={"visible": np.arange(2, dtype=np.int32)}), "asked for"),
    (joining(draft={"positions": NONE}), "asked for"),
    (joining(draft={"tokens": np.array([5], np.int32), "store": Store.NONE}), "asked for"),
])  # fmt: skip
def test_rows_that_cannot_go_on_are_refused(decode, message):
    with pytest.raises(DecoderError, match=message):
        run(decode)


def test_rows_of_different_layers_cannot_go_on():
    def decode(seq: TokenSequence) -> Any:
        chain = TokenTree.chain(seq.pending)
        yield Forward(NONE, tree=chain, layers=FIRST[:-1], hidden=(EXIT - 2,))
        under = np.zeros(1, np.int32)
        five = TokenTree.siblings([5])
        yield Forward(NONE, tree=five, under=under, layers=FIRST, hidden=(EXIT - 1,))
        layers = tuple(range(EXIT - 1, LAYERS))
        yield Forward(seq.pending, tree=TokenTree.siblings([5]), layers=layers)

    with pytest.raises(DecoderError, match="asked for"):
        run(decode)


SPECS = [
    "layer-skip(pattern=exit,skip=0.3,width=1,budget=fixed)",
    "layer-skip(pattern=exit,skip=0.3,width=3,budget=fixed)",
    "layer-skip(pattern=exit,skip=0.0,budget=fixed)",
    "layer-skip(pattern=exit,skip=0.3,budget=fixed,verifier=rsd)",
    "prompt-lookup+layer-skip(pattern=exit,skip=0.3,budget=fixed)", "del",
]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_methods_with_an_exit_verify_behind_it(temperature, monkeypatch):
    """No verification computes the layers before the exit again, and no output token differs."""
    eng = engine()
    ran: list[tuple[Any, int]] = []
    real = eng.models[TARGET].forward

    def forward(spans: Any) -> Any:
        ran.append((spans[0].layers, sum(len(span.positions) for span in spans)))
        return real(spans)

    monkeypatch.setattr(eng.models[TARGET], "forward", forward)
    plain = serve(eng, ["greedy"], temperature=temperature, ignore_eos=True)[0]
    for spec in SPECS:
        ran.clear()
        (sequence,) = serve(eng, [spec], temperature=temperature, ignore_eos=True)
        if "rsd" not in spec or temperature == 0.0:
            assert sequence.output == plain.output, spec
        assert sequence.stats.drafted > 0
        drafts = sum(step.drafted > 0 for step in sequence.trace)
        whole = sum(layers is None for layers, _ in ran)
        if "+" in spec:  # Copies of the prompt are verified with it.
            assert 0 < whole < drafts
        else:
            assert whole == len(sequence.trace) - drafts, spec
            rows = sum(rows for layers, rows in ran if layers is not None and 0 not in layers)
            assert rows >= sequence.stats.drafted + drafts, spec


@pytest.mark.parametrize("first", [SPECS[1], "del"])
def test_a_part_that_needs_other_layers_has_the_whole_forward(first: str, tmp_path: Path) -> None:
    head = random_head("eagle3", DEEP[0], tmp_path)
    (plain,) = serve(engine(), ["greedy"], ignore_eos=True)
    (fused,) = serve(engine(), [f"{first}+eagle(head='{head}')"], ignore_eos=True)
    assert fused.output == plain.output
    assert fused.stats.drafted > 0


@pytest.fixture(params=[False, True], ids=["whole", "behind"])
def alone(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make requests of a batch believe that they are alone, so that verifications use the exit."""
    if request.param:
        monkeypatch.setattr(LiveSequence, "neighbours", 0)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_in_one_batch_each_says_what_it_says_alone(temperature: float) -> None:
    specs = [*(spec for spec in SPECS if "rsd" not in spec or not temperature), "greedy"]
    together = serve(engine(), specs, temperature=temperature, ignore_eos=True)
    (plain,) = serve(engine(), ["greedy"], temperature=temperature, ignore_eos=True)
    assert [one.output for one in together] == [plain.output] * len(specs)


@pytest.mark.first(6)
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("after", range(3, 12))
def test_one_that_ends_between_draft_and_verification_costs_nobody(after: int) -> None:
    eng = engine()
    settings = SamplingParams.from_mapping({"max_tokens": 32, "ignore_eos": True, "seed": 3})
    ended, *others = [
        eng.add(GenerationRequest(np.array(PROMPT, np.int32), parse(spec), settings))
        for spec in (SPECS[1], SPECS[1], "del", "greedy")
    ]
    for step in range(10_000):
        if step == after:
            eng.cancel(ended)
        eng.step()
        eng.check()
        if not eng.busy:
            break
    (plain,) = serve(engine(), ["greedy"], ignore_eos=True)
    assert [one.output for one in others] == [plain.output] * 3
    assert ended.output == plain.output[: len(ended.output)]


@pytest.mark.usefixtures("alone")
def test_all_forwards_of_a_step_are_its_load() -> None:
    """A verification after the exit is another forward, but not another step."""
    eng = engine()
    settings = SamplingParams.from_mapping({"max_tokens": 32, "ignore_eos": True, "seed": 3})
    for spec in ["greedy"] * 7 + [SPECS[2]]:
        eng.add(GenerationRequest(np.array(PROMPT, np.int32), parse(spec), settings))
    loads, drafting = Counter[tuple[int, int]](), 0
    while len(eng.running) == 8 or eng.queue.size:
        before = eng.forwards
        eng.step()
        if len(eng.running) == 8:
            loads[eng.load.sequences, eng.load.rows >= 8] += 1
            drafting += eng.forwards > before + 1
    assert set(loads) == {(8, True)}  # Also while one drafts and the seven others decode.
    assert drafting >= 3


def test_prefixes_behind_an_exit_are_reused():
    """Another request can reuse pages that were completed after an exit, with the same output."""
    eng = engine()
    text = tuple(range(1, 20))
    serve(eng, [SPECS[1]], text, max_tokens=40, ignore_eos=True)
    longer = (*text, *serve(eng, ["greedy"], text, max_tokens=40, ignore_eos=True)[0].output)
    (reused,) = serve(eng, ["greedy"], longer, max_tokens=8, ignore_eos=True)
    (fresh,) = serve(engine(), ["greedy"], longer, max_tokens=8, ignore_eos=True)
    assert reused.output == fresh.output
    assert reused.cached_tokens >= 48
    assert len(PROMPT) < 16


def test_a_draft_with_little_memory_is_verified_as_a_whole():
    (sequence,) = serve(
        engine(draft_tokens=4),
        ["layer-skip(pattern=exit,skip=0.3,width=3,num_speculative_tokens=4,budget=fixed)"],
        ignore_eos=True,
    )
    (plain,) = serve(engine(), ["greedy"], ignore_eos=True)
    assert sequence.output == plain.output
