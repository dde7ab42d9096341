"""Properties that the heads of only one method have in training."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from head_training import built, drafts_alike, learns, rows_of, training

from paradecode.backends.heads.run import run_head
from paradecode.core.head import HeadDraft, Memory
from paradecode.testing.network_reference import apply_network
from paradecode_lab.training.heads.objective import loss_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_clovers_loss_counts_the_distance_of_states(llm, data):
    trainer = training(llm, data, "clover")
    batch, head = trainer.batch(data.texts[:2], trainer.features.of([0, 1])), trainer.head
    with torch.no_grad():
        whole = loss_of(head, batch, 1, 0.7).item()
        head.match = 0.0
        entropy = loss_of(head, batch, 1, 0.7).item()
        known = batch.wanted >= 0
        apart = head.states(batch.rows, 1)[0] - head.target.final(batch.final)
    sizes = apart[known].abs().numpy()
    distance = np.where(sizes < 1, sizes**2 / 2, sizes - 0.5).mean()
    assert distance > 0.01
    assert whole - entropy == pytest.approx(10 * distance, rel=1e-4)


@pytest.mark.first(1)
@pytest.mark.parametrize(("method", "sizes", "taps", "blocks"), [
    ("kangaroo", {}, (1,), 1), ("kangaroo", {"layers": 2, "inner": 64, "own_rows": False}, (1,), 2),
    ("m2r2", {}, (0, 1), 2),
])  # fmt: skip
def test_a_head_behind_an_exit_drafts_as_it_was_trained(
    method, sizes, taps, blocks, llm, data, tmp_path
):
    """Level i of training must guess what the written head guesses i + 1 positions later."""
    trainer = training(llm, data, method, **{"inner": 0, **sizes})
    learns(trainer, tmp_path, 0.1)
    head = built(llm, tmp_path)
    assert (head.taps, len(head.blocks)) == (taps, blocks)
    states, text = rows_of(data, llm, 0, head.taps), data.texts[0]
    with torch.no_grad():
        made = trainer.head.levels(trainer._batch([0]).rows, 3)
    memory, guesses = Memory(), []
    for row in range(len(text.tokens) - 1):
        asked = HeadDraft(memory, states[row : row + 1], np.zeros(1, np.int64), row, 1, 1, 1)
        guesses.append(int(run_head(head, [asked], apply_network)[0].tokens[0]))
    assert head.to_target is not None
    for level, logits in enumerate(made):
        wanted = head.to_target[logits.argmax(-1).numpy()].tolist()
        assert wanted == guesses[text.start + level :]


def test_longspec_sees_the_targets_keys_so_far_at_every_level(llm, data):
    trainer = training(llm, data, "longspec")
    head, rows = trainer.head, trainer.batch(data.texts[:1], trainer.features.of([0])).rows
    head.parameters["layers.0.self_attn.o_proj.weight"].normal_(0, 0.05)
    place = 3
    later = rows.features.clone()
    later[rows.spans[0][2] + place + 1 :] += 1
    with torch.no_grad():
        made = head.states(rows, 3)
        other = head.states(replace(rows, features=later), 3)
    for state, changed in zip(made, other):
        apart = (state - changed).abs().amax(-1) > 1e-6
        assert not apart[: place + 1].any()
        assert apart[place + 1 :].all()


def test_longspec_sees_as_few_tokens_in_training_as_when_it_drafts(
    llm, data, monkeypatch, tmp_path
):
    for package in ("paradecode_lab.training", "paradecode.models"):
        monkeypatch.setattr(f"{package}.heads.longspec.WINDOW", 3)
    trainer = training(llm, data, "longspec")
    trainer.head.parameters["layers.0.self_attn.o_proj.weight"].normal_(0, 0.5)
    trainer.export(tmp_path)
    assert drafts_alike(trainer, llm, data, tmp_path) < 2e-3


def test_longspec_learns_far_positions_from_short_texts(llm, data, monkeypatch):
    """Positions of short texts are shifted in training.

    If all tokens shift equally, the states must stay equal. If the first tokens stay in place, the
    states must change.
    """
    trainer = training(llm, data, "longspec")
    head, rows = trainer.head, trainer.batch(data.texts[:2], trainer.features.of([0, 1])).rows
    head.parameters["layers.0.self_attn.o_proj.weight"].normal_(0, 1)
    head.target = replace(head.target, context=2000)
    with torch.no_grad():
        used = torch.cat(head.states(rows, 2))
        head.progress, head.random = 0.0, np.random.default_rng(1)
        places = [head._places(20) for _ in range(200)]
        tried = [torch.cat(head.states(rows, 2)) for _ in range(6)]
        monkeypatch.setattr("paradecode_lab.training.heads.longspec.SINK", 0)
        shifted = torch.cat(head.states(rows, 2))
    sinks, offsets = set(), []
    for each in places:
        moved = each - torch.arange(20)
        sinks.add(int((moved == 0).sum()) if moved[-1] else 0)
        offsets.append(int(moved[-1]))
        assert set(moved.tolist()) <= {0, offsets[-1]}
    assert sinks == {0, 1, 2, 3, 4}
    assert min(offsets) < 100 < 880 < max(offsets) <= 1000 - 20
    apart = (shifted - used).abs().max()
    assert apart < 1e-3
    assert max((anchored - used).abs().max() for anchored in tried) > 20 * apart
    head.target = replace(head.target, context=1019)
    assert head._places(20).tolist() == list(range(20))


def test_falcon_is_shown_answers_where_it_guesses_wrong(llm, data, monkeypatch):
    monkeypatch.setattr("paradecode_lab.training.heads.falcon.SHOWN", 100.0)
    trainer = training(llm, data, "falcon")
    batch, head = trainer.batch(data.texts[:3], trainer.features.of([0, 1, 2])), trainer.head
    rows, target = batch.rows, trainer.head.target
    with torch.no_grad():
        used = head.states(rows, 2)
        head.progress = 0.0
        shown = head.states(rows, 2)
        truth = (target.final(rows.features) @ target.rows.T).argmax(-1)
    for level in (0, 1):
        asked = rows.drafting(level)
        changed = (used[level] != shown[level]).any(-1).split([len(each) for each in asked])
        said = [head.say(each, 0).argmax(-1) for each in used]
        for text, own in enumerate(asked):
            # A block is shown right inputs if one of its two guesses is wrong.
            first = sum(len(each) for each in rows.drafting(0)[:text])
            second = sum(len(each) for each in rows.drafting(1)[:text])
            for i, row in enumerate(own[: len(rows.drafting(1)[text])]):
                guessed = said[0][first + i], said[1][second + i]
                right = guessed[0] == truth[row + 1] and guessed[1] == truth[row + 2]
                assert bool(changed[text][i]) == (not right)
    # Half way through training fewer right inputs are shown, and at the end none.
    monkeypatch.setattr("paradecode_lab.training.heads.falcon.SHOWN", 0.4)
    share = []
    for head.progress in (0.0, 0.5, 1.0):
        with torch.no_grad():
            share.append((head.states(rows, 1)[0] != used[0]).any(-1).float().mean().item())
    assert share[0] > share[1] > share[2] == 0
