"""Samples for training: labels must agree with a walk of the tree, and recordings with traces."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from acceptance_models import PROMPTS, front, pair, serve

from paradecode.core import tensor_file
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.methods.draft.budgets.networks import choices
from paradecode.methods.draft.budgets.shapes import Action
from paradecode.methods.specs import Spec, find, parse
from paradecode_lab.measure.prompts import Item
from paradecode_lab.training.acceptance.head_samples import HeadSamples, record_head_samples
from paradecode_lab.training.acceptance.metrics import auc, quality, split
from paradecode_lab.training.acceptance.selector_samples import (
    SelectorSamples,
    record_selector_samples,
    seconds_of,
    tokens_of,
)
from paradecode_lab.training.acceptance.workload import DraftWorkload
from paradecode_lab.training.samples import Origin

ITEMS = [Item(f"p{i}", f"p{i}", "", prompt, 40) for i, prompt in enumerate(PROMPTS)]
PARAMS = SamplingParams(ignore_eos=True, seed=1)
CHAINS = parse("draft-model(width=1,num_speculative_tokens=5)")
TREES = parse("draft-model(width=4,num_speculative_tokens=5)")


def head_samples(spec=CHAINS, params=PARAMS) -> HeadSamples:
    return record_head_samples(front(pair()), ITEMS, spec, params, lambda done, total: None)


def walked(action: Action, ranks: list[int]) -> int:
    """Return how many tokens with these ranks a tree of the action's shape contains."""
    shape, path = action.shape(), ()
    for rank in ranks:
        if rank >= shape.get(path, 0):
            break
        path += (rank,)
    return len(path)


def test_tokens_of_every_action_are_those_of_a_walk_through_its_tree():
    random = np.random.default_rng(0)
    ranks = random.choice(5, 80, p=[0.7, 0.1, 0.1, 0.05, 0.05])
    options = choices(10)
    tokens = tokens_of(ranks, options)
    deepest = max(max(map(len, action.shape()), default=0) for action in options) + 1
    assert tokens.shape == (80 - deepest, len(options))
    for place in range(len(tokens)):
        for column, action in enumerate(options):
            assert tokens[place, column] == 1 + walked(action, ranks[place:].tolist())
    assert tokens_of(ranks[:3], options).shape == (0, len(options))


@pytest.mark.parametrize(("action", "expected"), [
    (Action(1, 0, 0), 1 + 100),  # The draft's first forward has been run.
    (Action(1, 0, 3), 3 + 103),
    (Action(4, 0, 1), 1 + 104),  # All children of a node come with its row.
    (Action(3, 2, 2), 3 + 30 + 108),
])  # fmt: skip
def test_seconds_of_an_action(action, expected):
    draft, verify = [1.0, 20.0, 30.0, 40.0], [100.0 + nodes for nodes in range(20)]
    assert seconds_of(action, draft, verify) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_head_samples_are_what_the_traces_of_full_drafts_say(temperature):
    params = replace(PARAMS, temperature=temperature)
    samples = head_samples(params=params)
    served = serve(
        pair(), "draft-model(width=1,num_speculative_tokens=5,budget=fixed)",
        temperature=temperature,
    )  # fmt: skip
    expected = [
        (number, depth < step.accepted)
        for number, sequence in enumerate(served)
        for step in sequence.trace
        # The newest draft token was never read by the draft model. After a rejection nothing is
        # judged.
        for depth in range(min(len(step.tree) - 1, step.accepted + 1))
    ]
    found = list(zip(samples.prompt.astype(int), samples.accepted > 0, strict=True))
    assert sorted(found) == sorted(expected)
    assert 0 < samples.accepted.mean() < 1
    assert ((samples.probability > 0) & (samples.probability <= 1)).all()
    assert samples.inputs.shape == (len(samples), 5)


def test_the_inputs_are_the_rows_that_consumed_the_tokens():
    """The input of a draft token is the state of the row that has read the token.

    The toy model's states contain this token.
    """
    samples = head_samples()
    (first, *_) = serve(pair(), "draft-model(width=1,num_speculative_tokens=5,budget=fixed)")
    step = first.trace[0]
    judged = min(len(step.tree) - 1, step.accepted + 1)
    assert samples.inputs[:judged, 4].tolist() == step.tree.tokens[:judged].tolist()


def test_recordings_repeat_themselves():
    first, again = head_samples(), head_samples()
    assert np.array_equal(first.inputs, again.inputs)
    assert np.array_equal(first.probability, again.probability)


def test_drafters_without_a_model_give_estimates():
    samples = head_samples(parse("prompt-lookup(num_speculative_tokens=5)"))
    assert (samples.reads, samples.inputs.shape[1]) == ("estimates", 4)
    assert len(samples) > 10


def test_selector_samples_are_positions_of_the_plain_text():
    recorded = record_selector_samples(
        front(pair()), ITEMS, TREES, PARAMS, lambda done, total: None
    )
    # There are no inputs before the first verification, and no labels for the last five tokens.
    assert len(recorded) == len(ITEMS) * (40 - 1 - 5)
    assert recorded.q_now.shape == (len(recorded), 5)
    plain = serve(pair(), "greedy")
    newest = [s.output[place] for s in plain for place in range(40 - 1 - 5)]
    assert recorded.q_now[:, 4].tolist() == newest
    before = [([*p, *s.output])[len(p) - 1 : len(p) + 33] for p, s in zip(PROMPTS, plain)]
    for states in (recorded.q_before, recorded.p_before):
        assert states[:, 4].tolist() == [token for text in before for token in text]
    one = choices(5).index(Action(1, 0, 1))
    served = serve(pair(), "draft-model(width=1,num_speculative_tokens=1,budget=fixed)")
    tried = sum(len(step.tree) for sequence in served for step in sequence.trace)
    taken = sum(step.accepted for sequence in served for step in sequence.trace)
    assert recorded.tokens[:, one].mean() - 1 == pytest.approx(taken / tried, abs=0.1)


@pytest.mark.parametrize("spec", ["prompt-lookup", "draft-model(width=1)", "greedy", "del"])
def test_methods_whose_drafts_cannot_be_ranked_are_refused(spec):
    with pytest.raises(InvalidInput, match="--decoder"):
        record_selector_samples(front(pair()), ITEMS, parse(spec), PARAMS, lambda d, t: None)


def test_samples_are_kept_and_others_are_refused(tmp_path):
    samples = head_samples()
    own, other = Origin("workload", "weights"), Origin("another", "weights")
    samples.save(tmp_path / "head", own)
    again = HeadSamples.load(tmp_path / "head", own)
    assert np.array_equal(again.inputs, samples.inputs)
    recorded = record_selector_samples(
        front(pair()), ITEMS, TREES, PARAMS, lambda done, total: None
    )
    recorded.save(tmp_path / "tree", own)
    loaded = SelectorSamples.load(tmp_path / "tree", own, count=5)
    assert np.array_equal(loaded.tokens, recorded.tokens)
    assert np.array_equal(loaded.scalars, recorded.scalars)
    for load in (
        lambda: HeadSamples.load(tmp_path / "head", other),
        lambda: HeadSamples.load(tmp_path / "head", Origin("workload", "others")),
        lambda: HeadSamples.load(tmp_path / "tree", own),
        lambda: SelectorSamples.load(tmp_path / "head", own, count=5),
        lambda: SelectorSamples.load(tmp_path / "tree", own, count=6),
    ):
        with pytest.raises(InvalidInput, match="--samples"):
            load()


def test_samples_of_older_versions_do_not_say_whose_weights_it_was(tmp_path):
    samples, path = head_samples(), tmp_path / "head"
    facts = {name: getattr(samples, name) for name in samples.facts()}
    tensors = {name: getattr(samples, name) for name in samples.axes}
    tensor_file.save(path, samples.kind, {**facts, "workload": "workload"}, tensors)
    again = HeadSamples.load(path, Origin("workload", "weights"))
    assert np.array_equal(again.inputs, samples.inputs)
    with pytest.raises(InvalidInput, match="another workload"):
        HeadSamples.load(path, Origin("another", "weights"))


def test_the_draft_model_and_the_files_of_a_method_are_part_of_the_origin(tmp_path):
    """A table that was counted again, or another draft model, must change the origin of samples."""
    table, draft = tmp_path / "own.table", tmp_path / "draft.gguf"
    llm = front(pair())
    llm.model, llm.backend, llm.draft_model = "m", SimpleNamespace(name="native"), None
    spec, seen = Spec(find("prompt-lookup"), {"table": str(table)}), set()
    for text, model in ((b"one", b"a"), (b"two", b"a"), (b"two", b"b"), (b"two", None)):
        table.write_bytes(text)
        if model is not None:
            draft.write_bytes(model)
        llm.draft_model = str(draft) if model is not None else None
        seen.add(DraftWorkload().origin(llm, spec).weights)
    assert len(seen) == 4
    assert DraftWorkload().origin(llm, spec).weights in seen


def test_auc_is_the_share_of_pairs_in_order():
    random = np.random.default_rng(0)
    predicted = random.choice([0.1, 0.3, 0.5, 0.9], 60)
    accepted = (random.random(60) < predicted).astype(float)
    pairs = [
        (hit > miss) + 0.5 * (hit == miss)
        for hit in predicted[accepted > 0]
        for miss in predicted[accepted == 0]
    ]
    assert auc(predicted, accepted) == pytest.approx(np.mean(pairs))
    assert np.isnan(auc(predicted, np.ones(60)))


def test_calibration_error_of_a_constant_is_its_distance():
    accepted = np.array([1.0] * 30 + [0.0] * 70)
    assert quality(np.full(100, 0.3), accepted).calibration_error == pytest.approx(0, abs=1e-9)
    assert quality(np.full(100, 0.8), accepted).calibration_error == pytest.approx(0.5)


@pytest.mark.parametrize("conversations", [1, 3, 40])
def test_a_split_keeps_conversations_together(conversations):
    prompt = np.repeat(np.arange(conversations), 20)
    parts = split(prompt, seed=1)
    assert (np.sum(parts, axis=0) == 1).all()
    assert all(part.any() for part in parts)
    if conversations > 1:
        names = [set(prompt[part].tolist()) for part in parts]
        assert sum(map(len, names)) == conversations
