"""Tests of drafts by a second model: always exact, and as fast as the draft is good."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import PROMPT, backend, engine, permuted, serve, spelling

from paradecode.backends.interface import Span
from paradecode.backends.native.machine import default_threads
from paradecode.core.errors import InvalidInput
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.llm import LLM
from paradecode.methods.parts import known
from paradecode.methods.specs import parse
from paradecode.models.heads.files import HeadFile, write_head
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.toy import ToyBackend
from tiny_folder import write_folder

TARGET = tiny_checkpoint("llama")


@pytest.mark.parametrize("budget", known("budget"))
def test_every_budget_gives_the_plain_output(budget):
    spec = {"method": "draft-model", "budget": budget}
    eng = engine(TARGET, tiny_checkpoint("llama", seed=0))
    plain, drafted = serve(eng, ["greedy", spec], max_tokens=40)
    assert drafted.output == plain.output
    assert drafted.stats.forwards < plain.stats.forwards


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_like_the_target_is_always_accepted(temperature):
    """A draft model equal to the target is always accepted, also at a temperature.

    Both sample with the same noise.
    """
    eng = engine(TARGET, TARGET)
    chain, pearl = serve(
        eng, ["draft-model(width=1,budget=fixed)", "pearl"], temperature=temperature,
        ignore_eos=True,
    )  # fmt: skip
    stats = chain.stats
    assert stats.accepted == stats.drafted
    assert stats.forwards == -(-32 // 9)
    assert pearl.stats.accepted == pearl.stats.drafted


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", ["pearl", "mirror-sd"])
def test_schedules_never_take_more_forwards_than_plain_decoding(method, seed):
    eng = engine(TARGET, tiny_checkpoint("llama", seed=seed))
    plain, sequence = serve(eng, ["greedy", method], temperature=0.5)
    assert sequence.stats.forwards <= plain.stats.forwards


def test_pearl_stays_in_post_verify_while_the_draft_is_right():
    (sequence,) = serve(
        engine(TARGET, TARGET), ["pearl(num_speculative_tokens=4)"], ignore_eos=True
    )
    accepted = [step.accepted for step in sequence.trace]
    assert accepted[0] == 0  # Pre-verify: the first token judges the first guess.
    assert accepted[1:-1] == [3] * (len(accepted) - 2)  # And what the forward itself says.


def test_pearl_drafts_a_block_after_success_only():
    eng = engine(TARGET, tiny_checkpoint("llama", seed=1))
    (sequence,) = serve(eng, ["pearl"], temperature=1.5, max_tokens=100, ignore_eos=True)
    pairs = list(zip(sequence.trace, sequence.trace[1:]))
    failed = [(a, b) for a, b in pairs if a.accepted < a.drafted]
    assert failed
    assert all(after.drafted == 0 for _, after in failed)  # Pre-verify again.
    assert any(after.drafted > 0 for _, after in pairs)


def test_mirror_begins_the_next_block_with_what_it_ran_ahead():
    """Mirror-SD verifies only blocks that it has prepared, as the exit predicts each outcome."""
    spec = "mirror-sd(num_speculative_tokens=4,candidates=1,depth=1.0)"
    ran = []
    for tokens in (16, 32):
        eng = engine(TARGET, tiny_checkpoint("llama", seed=1))
        draft, spans = eng.models["draft"], []
        run = draft.forward
        draft.forward = lambda each, run=run, spans=spans: spans.append(each) or run(each)
        (sequence,) = serve(eng, [spec], max_tokens=tokens, ignore_eos=True)
        assert sequence.stats.forwards == tokens  # The draft is always wrong.
        ran.append(len(spans))
    assert ran[1] - ran[0] == 16 * 4


@pytest.mark.parametrize("candidates", [0, 2])
def test_streams_draft_several_tokens_a_forward(candidates, tmp_path):
    """Mirror-SD's blocks are those of a plain reading of the streams, in as few draft forwards."""
    eng, model, embed = engine(TARGET, TARGET), backend(TARGET), TARGET[1]["embed"].float32()
    model.reserve(1)
    prompts = embed[[11, 70]]
    write_head(HeadFile("ppd", {"prompt_embeddings": prompts}), tmp_path, {})

    def streamed(text, count, made=()):
        made = [*made]
        while len(made) < count:
            streams = prompts[: count - len(made) - 1]
            rows = np.concatenate([embed[[*text, *made]], streams])
            at, none = np.arange(len(rows), dtype=np.int32), np.empty(0, np.int32)
            said = at[len(rows) - len(streams) - 1 :]
            span = Span(none, at, at, np.full(len(at), -1, np.int32), 0, said, embeddings=rows)
            made += model.forward([span])[0].logits.argmax().tolist()
        return made

    spans, run = [], eng.models["draft"].forward
    eng.models["draft"].forward = lambda each: spans.append(each) or run(each)
    sizes = f"num_speculative_tokens=5,candidates={candidates},depth=1.0"
    spec = f"mirror-sd({sizes},streams='{tmp_path}')"
    (sequence,) = serve(eng, [spec], max_tokens=40, ignore_eos=True)
    text, left = list(PROMPT), streamed(PROMPT, 5)[1:]  # Drafted while the prompt was read.
    for number, step in enumerate(sequence.trace):
        block = streamed(text, 5, left if number == 1 else ())
        if len(text) < 40:  # Near the end there is no room for all streams.
            assert step.tree.tokens.tolist() == (block if number else [])
        text += step.tokens
    assert len(text) == 48
    assert {0, 1} <= {step.accepted for step in sequence.trace}
    # Five tokens need two forwards of three rows, where one token a forward needs five.
    assert len(spans) <= (2 if candidates else 4) * len(sequence.trace)
    plain, sampled = serve(eng, ["greedy", spec], temperature=0.8)
    assert sampled.output == plain.output


@pytest.mark.parametrize("method", ["mirror-sd", "pearl", "draft-model(budget=fixed)"])
def test_one_that_drafts_is_still_a_neighbour(method, monkeypatch):
    """A request that is drafting counts as active in steps that run no forward of its target."""
    seen, step = [], Engine.step

    def watched(self):
        both = len(self.running) == 2
        changed = step(self)
        if both and len(self.running) == 2:
            seen.append(self.load.sequences)
        return changed

    monkeypatch.setattr(Engine, "step", watched)
    serve(engine(TARGET, tiny_checkpoint("llama", seed=1)), [method, "greedy"], ignore_eos=True)
    assert len(seen) > 10
    assert set(seen) == {2}


@pytest.mark.parametrize("verifier", ["rejection", "rsd", "traversal", "nss"])
def test_verifiers_that_read_draws_accept_all_of_an_equal_chain(verifier):
    eng = engine(TARGET, TARGET)
    spec = f"draft-model(width=1,verifier={verifier},budget=fixed)"
    (sequence,) = serve(eng, [spec], temperature=0.7, ignore_eos=True)
    if verifier != "nss":  # It draws from p by itself, so it may differ from any draft.
        assert sequence.stats.accepted == sequence.stats.drafted
    tree = sequence.trace[0].tree
    assert len(tree) == 8


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", [
    "draft-model(width=1,budget=fixed)", "s2d(sure=2.0,budget=fixed)", "pearl", "mirror-sd",
])  # fmt: skip
def test_other_token_ids_are_translated(method, temperature):
    """The same model with permuted ids as draft model is accepted as often as the model itself."""
    order = np.random.default_rng(0).permutation(96)
    place = np.argsort(order)
    vocabulary = Vocabulary(order.astype(np.int32), place.astype(np.int32), np.arange(97))
    eng = engine(TARGET, permuted(TARGET, order), vocabulary)
    plain, sequence = serve(eng, ["greedy", method], temperature=temperature, ignore_eos=True)
    assert sequence.output == plain.output
    assert sequence.stats.accepted == sequence.stats.drafted > 0


@pytest.mark.parametrize(
    "method", ["draft-model", "draft-model(verifier=rsd)", "s2d(sure=0.1)", "pearl", "mirror-sd"]
)
def test_a_smaller_vocabulary_spells_what_it_lacks(method):
    order, vocabulary = spelling()
    eng = engine(TARGET, permuted(TARGET, order), vocabulary)
    prompt = tuple(token for token in range(2, 40))
    plain, sequence = serve(eng, ["greedy", method], prompt, max_tokens=60, ignore_eos=True)
    assert sequence.output == plain.output
    assert all(token % 3 for step in sequence.trace for token in step.tree.tokens.tolist())


def test_a_draft_with_a_short_context_drafts_while_it_can():
    config, weights = TARGET
    short = replace(config, context_length=24), weights
    for method in ("draft-model", "s2d", "pearl", "mirror-sd"):
        eng = engine(TARGET, short)
        plain, sequence = serve(eng, ["greedy", method], ignore_eos=True, max_tokens=40)
        assert sequence.output == plain.output
        assert 0 < sequence.stats.accepted < 30


def test_without_a_draft_model_the_error_says_what_to_give():
    with pytest.raises(InvalidInput, match="draft_model"):
        serve(engine(TARGET), ["draft-model"])


def test_a_hopeless_draft_rests_when_costs_are_known():
    eng = engine(TARGET, tiny_checkpoint("llama", seed=1))
    eng.load.curve = CostCurve((1, 32), (64,), ((1.0, 2.0),))
    eng.load.others["draft"] = CostCurve((1, 32), (64,), ((0.5, 0.6),))
    (sequence,) = serve(eng, ["draft-model"], max_tokens=300, ignore_eos=True)
    assert eng.forwards < 300 + 60
    eng = engine(TARGET, TARGET)
    eng.load.curve = CostCurve((1, 32), (64,), ((1.0, 2.0),))
    eng.load.others["draft"] = CostCurve((1, 32), (64,), ((0.05, 0.06),))
    (sequence,) = serve(eng, ["draft-model"], max_tokens=300, ignore_eos=True)
    assert sequence.stats.forwards < 150


def test_specs_may_name_the_draft_model():
    spec = parse({"method": "draft_model", "model": "small", "num_speculative_tokens": 5})
    assert (spec.method.name, spec.draft_model) == ("draft-model", "small")
    assert spec.method.models == ("draft",)
    assert parse("pearl").method.models == ("draft",)
    assert parse("prompt-lookup").method.models == ()
    spec = parse({"method": "rasd", "drafter": "draft-model", "model": "small"})
    assert (spec.method.models, spec.draft_model) == (("draft",), "small")
    assert parse("rasd").method.models == ()
    for method in ("rasd", "prompt-lookup"):
        with pytest.raises(InvalidInput, match="model"):
            parse({"method": method, "model": "small"})


@pytest.mark.parametrize("curves", [False, True])
@pytest.mark.parametrize("fused", ["suffix+draft-model", "draft-model+prompt-lookup"])
def test_a_fusion_runs_no_model_on_a_text_that_repeats(fused, curves):
    ran = {}
    for surprise in (0, 1024):  # A text of one cycle, and one without any.
        for spec in ("greedy", "draft-model", fused):
            models = {name: ToyBackend(surprise=surprise) for name in ("target", "draft")}
            eng = Engine(models, Limits(kv_tokens=2048))
            if curves:
                eng.load.curve = CostCurve((1, 32), (64,), ((1.0, 1.5),))
                eng.load.others["draft"] = CostCurve((1, 32), (64,), ((0.3, 0.4),))
            rows: list[int] = []
            run = models["draft"].forward
            models["draft"].forward = lambda spans, run=run, rows=rows: (
                rows.append(len(spans)) or run(spans)
            )
            (sequence,) = serve(eng, [spec], (5, 6, 7, 8, 9) * 4, max_tokens=80, ignore_eos=True)
            ran[surprise, spec] = len(rows), sequence.stats.forwards
            assert surprise or spec != fused or not rows
    assert ran[0, fused][1] < ran[0, "greedy"][1] / 4
    # Where nothing repeats the model drafts nearly as much as it does alone.
    assert ran[1024, fused][0] > 0.5 * ran[1024, "draft-model"][0]
    assert ran[1024, fused][1] < 1.2 * ran[1024, "draft-model"][1], ran


@pytest.mark.parametrize("budget", ["delayed", "sequoia", "fixed"])
@pytest.mark.parametrize("verifier", ["rsd", "traversal"])
def test_budgets_shape_drawn_trees(budget, verifier):
    """No sampled node has more children than its budget asked for, and most have as many."""
    spec = {
        "method": "draft-model", "budget": budget, "verifier": verifier,
        "num_speculative_tokens": 12,
    }  # fmt: skip
    eng, wanted = engine(TARGET, tiny_checkpoint("llama", seed=0)), []

    def build():
        decoder = parse(spec)()
        grow = decoder.budget.grow

        def told(seq, tree, parents, estimates):
            marks = grow(seq, tree, parents, estimates)
            wanted.append((len(tree), parents.tolist(), marks.sum(axis=1).tolist()))
            return marks

        decoder.budget.grow = told
        return decoder

    (sequence,) = serve(eng, [build], temperature=0.8, max_tokens=64, ignore_eos=True)
    trees = [step.tree for step in sequence.trace if step.tree is not None and len(step.tree)]
    asked, full, made = [], 0, 0
    for size, parents, counts in wanted:
        if size == 0:
            asked.append({})
        asked[-1].update(zip(parents, counts))
    for tree, counts in zip(trees, [counts for counts in asked if any(counts.values())]):
        for node in (-1, *range(len(tree))):
            children = len(tree.children(node))
            assert children <= counts.get(node, 0)
            made += children > 0
            full += children > 0 and children == counts[node]
    assert made > 10
    assert full > 0.7 * made


def test_rasd_keeps_what_the_draft_model_would_begin_with():
    """RASD keeps only retrieved paths that begin with one of the draft model's first tokens."""
    eng = engine(TARGET, TARGET)
    spec = "rasd(drafter=draft-model,budget=fixed,num_speculative_tokens=6)"
    plain, sequence = serve(eng, ["greedy", spec], (5, 6, 7, 5, 6, 9, 5, 6), ignore_eos=True)
    alone = serve(eng, ["retrieval(budget=fixed)"], (5, 6, 7, 5, 6, 9, 5, 6), ignore_eos=True)
    assert sequence.output == plain.output
    assert sequence.stats.forwards < alone[0].stats.forwards
    first = sequence.trace[0].tree
    begun = first.tokens[first.parents == -1].tolist()
    assert plain.output[0] in begun  # The draft model is the target itself.
    assert len(begun) <= 3  # And names three.


@pytest.mark.parametrize("spec", ["layer-skip+swift", "draft-model+draft-model", "del+layer-skip"])
def test_one_model_grows_one_tree_at_a_time(spec):
    with pytest.raises(InvalidInput, match="only one part"):
        parse(spec)


@pytest.mark.parametrize(
    "spec", ["draft-model", "prompt-lookup+draft-model", "pearl", "rasd(drafter=draft-model)"]
)
def test_the_front_asks_for_the_draft_model_before_it_loads_anything(spec):
    with pytest.raises(InvalidInput, match="draft_model"):
        LLM("there-is-no-such-model", decoder=spec)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_model_with_threads_of_its_own_changes_no_token(temperature, tmp_path):
    pytest.importorskip("paradecode.backends.native._core")
    folder = str(write_folder(tmp_path / "m", "llama"))
    other = str(write_folder(tmp_path / "d", "llama", rope_theta=500.0))  # It guesses worse.
    prompts = [[5, 6, 7, 8, 5, 6], [9, 8, 7]]
    found = {}
    for draft in (folder, other):
        with LLM(folder, draft_model=draft, backend="native", draft_threads=1) as llm:
            assert llm.engine.apart
            assert llm.backend.threads == max(1, default_threads() - 1)
            for spec in ("greedy", "pearl", "mirror-sd", "draft-model"):
                outputs = llm.complete(prompts, decoder=spec, max_tokens=24, ignore_eos=True,
                                       temperature=temperature, seed=5)  # fmt: skip
                found[spec, draft] = [one.token_ids for one in outputs]
    assert all(tokens == found["greedy", folder] for tokens in found.values())


@pytest.mark.parametrize(("given", "said"), [
    ({"draft_threads": 0, "draft_model": "SELF"}, "draft_threads"),
    ({"draft_threads": 1, "draft_model": "SELF", "backend": "torch"}, "only the native"),
])  # fmt: skip
def test_threads_that_no_draft_model_can_have_are_refused(given, said, tmp_path):
    folder = str(write_folder(tmp_path / "m", "llama"))
    given = {name: folder if value == "SELF" else value for name, value in given.items()}
    with pytest.raises(InvalidInput, match=said):
        LLM(folder, **given)
