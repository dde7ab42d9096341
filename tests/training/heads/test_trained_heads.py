"""Draft heads: trained on a tiny model's own texts, stopped and continued, written and read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from paradecode.backends import open_backend
from paradecode.backends.interface import Span
from paradecode.cli import app
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.head import HeadDraft, Memory
from paradecode.core.head_run import run_head
from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from paradecode.measure.prompts import load_prompts
from paradecode.measure.tasks.tasks import BY_NAME
from paradecode.models.catalogue import open_model
from paradecode.models.heads import build_head, read_head
from paradecode.testing.network_reference import apply_network
from paradecode.training.heads.prompts import MeasuredPrompts, task_prompts
from paradecode.training.heads.scaling import ScalingLaw, ShortRun
from tiny_folder import write_folder

torch = pytest.importorskip("torch")
NOWHERE = np.empty(0, np.int32)

# These need PyTorch themselves.
from paradecode.training.heads.data import HeadData, make_data  # noqa: E402
from paradecode.training.heads.features import Features  # noqa: E402
from paradecode.training.heads.initial import METHODS, OF_ROWS, HeadShape, common_tokens  # noqa: E402
from paradecode.training.heads.objective import loss_of  # noqa: E402
from paradecode.training.heads.row_training import RowTraining  # noqa: E402
from paradecode.training.heads.texts import HeadText, TextSource, read_texts  # noqa: E402
from paradecode.training.heads.training import HEAD, HeadPlan, HeadTraining, layers_of  # noqa: E402
from paradecode.training.running import CHECKPOINT  # noqa: E402

PLAN = HeadPlan(steps=16, batch=8, rate=3e-3, averaging=0.9)
MODEL = "paradecode/tiny-autoregressive"
HELD = 32


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llm():
    with LLM(MODEL, threads=1, limits=Limits(prefix_cache=False)) as llm:
        yield llm


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> TextSource:
    """Tasks that the model can do, so that its answers can be learnt."""
    random, file = Random(0), tmp_path_factory.mktemp("prompts") / "tasks.jsonl"
    drawn = [BY_NAME[name].draw(random, held_out=False).prompt
             for _ in range(80) for name in ("json", "word-problem")]  # fmt: skip
    file.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in drawn))
    return TextSource(prompts=(str(file),), own=0, max_tokens=32, length=96, sampled=0.3)


@pytest.fixture(scope="module")
def data(llm, source, tmp_path_factory):
    return make_data(llm, source, tmp_path_factory.mktemp("data"), lambda *_: None)


def training(llm, data, method="eagle3", plan=PLAN, **sizes) -> HeadTraining:
    shape = HeadShape(method, **{"inner": 64, "vocabulary": 128, "levels": 3, **sizes})
    layers = layers_of(shape.tapped(llm.config), llm.config.layers)
    features = data.features(llm, layers, 1e9, lambda *_: None)
    return HeadTraining(shape, plan, open_model(MODEL), features, HELD)


def settings(source: TextSource) -> list[str]:
    """Of the commands."""
    return ["--model", MODEL, "--prompts", *source.prompts, "--own", "0", "--max-tokens", "32",
            "--length", "96", "--batch", "4", "--vocabulary", "128", "--held-out", "0.1",
            "--threads", "1"]  # fmt: skip


def rows_of(data, llm, number: int, taps: tuple[int, ...]):
    """Features and following tokens of a text, as the engine hands them to a head."""
    wanted = tuple(sorted({tap % llm.config.layers for tap in taps}))
    kept = data.features(llm, wanted, 1e9, lambda *_: None)
    states = kept.of([number])[0].astype(np.float32)
    parts = dict(zip(kept.layers, np.split(states, len(kept.layers), axis=1)))
    return np.concatenate([parts[tap % llm.config.layers] for tap in taps], axis=1)


OF_LEVELS = [each for each in METHODS if each not in ("kangaroo", *OF_ROWS)]
"""Methods whose networks draft all levels without the target."""


@pytest.mark.parametrize(("method", "bits"), [*((each, 16) for each in OF_LEVELS), ("eagle3", 8)])
def test_training_beats_the_untrained_head_and_the_folder_drafts_alike(
    method, bits, llm, data, tmp_path
):
    layers = 2 if method in ("p-eagle", "clover-2", "dovetail") else 1
    trainer = training(llm, data, method, layers=layers, own_rows=bits == 16)
    trainer.bits = bits
    before = trainer.evaluate()
    assert trainer.run(tmp_path, lambda: False, lambda *_: None)
    after = trainer.evaluate()
    assert after.levels[0] > before.levels[0] + 0.1, (before, after)
    assert after.tokens_a_forward > before.tokens_a_forward
    assert after.rows == before.rows > 100

    drafts_alike(trainer, llm, data, tmp_path)


def drafts_alike(trainer: HeadTraining, llm, data, folder: Path) -> float:
    """The engine drafts with the written folder what was trained, level by level.

    Returns the largest difference of a token's probability.
    """
    stored, checkpoint = read_head(folder / HEAD), open_model(MODEL)
    head = build_head(stored, llm.config, lambda name: checkpoint.weights[name].float32())
    text, cut = data.texts[0], 3
    states, known = rows_of(data, llm, 0, head.taps), text.tokens[1:].astype(np.int64)
    place = text.start - 1 + cut
    memory = Memory()
    memory.recent = text.tokens[:1].astype(np.int64)
    asked = HeadDraft(memory, states[: place + 1], known[: place + 1], 0, 3, 1, 3)
    (tree,) = run_head(head, [asked], apply_network)
    drafted = tree.tokens.tolist()
    # The levels of training see the text's tokens: so the text must go on as the draft does.
    longer = HeadText(
        np.array([*text.tokens[: place + 2], *drafted, 0], np.int32), text.start, True
    )
    features = Features(llm, [longer], trainer.features.layers, folder / "own", 0)
    own = trainer.batch([longer], features.of([0]))
    with torch.no_grad():
        made = trainer.head.levels(own.rows, 3)
    ids = head.to_target
    assert ids is not None
    assert [int(ids[int(logits[cut].argmax())]) for logits in made] == drafted
    chances = [float(logits[cut].softmax(-1).max()) for logits in made]
    return float(np.abs(tree.estimates - chances).max())


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


def test_prompt_tokens_guess_in_the_engine_as_they_were_trained(llm, data, tmp_path):
    """Level i of training is what the target says of prompt row i behind the text, read plainly; a
    stopped run ends like an undisturbed one; outputs are the plain ones."""
    shape = HeadShape("ppd", vocabulary=512, levels=3)
    features = data.features(llm, layers_of((-1,), llm.config.layers), 1e9, lambda *_: None)
    plan = replace(PLAN, rate=0.03, batch=4)

    def begun(steps: int) -> RowTraining:
        return RowTraining(shape, replace(plan, steps=steps), open_model(MODEL), features, HELD)

    trainer = begun(16)
    before = trainer.evaluate()
    assert trainer.run(tmp_path / "whole", lambda: False, lambda *_: None)
    after = trainer.evaluate()
    assert after.levels[0] > before.levels[0] + 0.05, (before, after)
    short, cut, again = begun(4), begun(4), begun(4)
    short.run(tmp_path / "short", lambda: False, lambda *_: None)
    assert not cut.run(tmp_path / "cut", lambda: cut.step == 2, lambda *_: None)
    again.resume(tmp_path / "cut" / CHECKPOINT)
    assert again.run(tmp_path / "cut", lambda: False, lambda *_: None)
    files = [tmp_path / n / HEAD / "adapter_model.safetensors" for n in ("short", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()

    prompts = read_head(tmp_path / "whole" / HEAD).tensors["prompt_embeddings"]
    checkpoint, text = open_model(MODEL), data.texts[0]
    backend = open_backend("torch", checkpoint.config, checkpoint.weights, dtype="fp32", threads=1)
    backend.reserve(1)
    embed = checkpoint.weights["embed"].float32()
    trainer.head.parameters["prompt_embeddings"].copy_(torch.from_numpy(prompts))
    ids = np.flatnonzero(trainer._numbers >= 0)
    with torch.no_grad():
        made = trainer.head.levels(trainer.batch([text], features.of([0])).rows, 3)
    for cut in (0, 4):
        known = text.tokens[: text.start + cut]
        rows, at = np.concatenate([embed[known], prompts]), np.arange(len(known) + 3, dtype="i4")
        span = Span(NOWHERE, at, at, np.full(len(at), -1, np.int32), 0, at[-3:],
                    embeddings=rows.astype(np.float32))  # fmt: skip
        said = backend.forward([span])[0].logits.gather(np.tile(ids, (3, 1)))
        for level in range(3):
            assert np.allclose(made[level][cut], said[level], atol=2e-2)
    spec = f"ppd(head='{tmp_path / 'whole' / HEAD}')"
    prompt = [text.tokens[: text.start].tolist()]
    plain, drafted = (llm.generate(prompt, decoder=each, max_tokens=24)[0] for each in (None, spec))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.rows > plain.stats.rows


@pytest.mark.parametrize("taps", [(), (0, 1, 1)])
def test_pseudo_states_guess_in_the_engine_as_they_were_trained(taps, llm, data, tmp_path):
    """Level i of training is what the target's last layers say of row i, read plainly."""
    shape = HeadShape("hidden-transfer", taps, vocabulary=512, levels=3)
    features = data.features(llm, layers_of((-1,), llm.config.layers), 1e9, lambda *_: None)
    plan = replace(PLAN, rate=0.01, batch=4, steps=8)
    trainer = RowTraining(shape, plan, open_model(MODEL), features, 8)
    before = trainer.evaluate()
    assert trainer.run(tmp_path, lambda: False, lambda *_: None)
    after = trainer.evaluate()
    assert after.levels[0] > before.levels[0] + 0.05, (before, after)

    stored, checkpoint, text = read_head(tmp_path / HEAD), open_model(MODEL), data.texts[0]
    backend = open_backend("torch", checkpoint.config, checkpoint.weights, dtype="fp32", threads=1)
    backend.reserve(1)
    matrices = [stored.tensors[f"transfer.{level}.weight"] for level in range(3)]
    for level in range(3):
        kept = trainer.head.parameters[f"transfer.{level}.weight"]
        kept.copy_(torch.from_numpy(matrices[level]))
    ids = np.flatnonzero(trainer._numbers >= 0)
    with torch.no_grad():
        made = trainer.head.levels(trainer.batch([text], features.of([0])).rows, 3)
    assert stored.taps == (taps or (2 * llm.config.layers // 3 - 1,) * 3)
    for cut in (0, 4):
        known = text.tokens[: text.start + cut]
        states = checkpoint.weights["embed"].float32()[known]
        for layer in range(checkpoint.config.layers):
            entering = [m @ states[len(known) - 1] for m, tap in zip(matrices, stored.taps)
                        if tap == layer - 1]  # fmt: skip
            states = np.concatenate([states, *(row[None] for row in entering)])
            at = np.arange(len(states), dtype="i4")
            span = Span(NOWHERE, at, at, np.full(len(at), -1, np.int32), 0, at[len(known) :],
                        hidden=(layer,), layers=(layer,), resume=states)  # fmt: skip
            (done,) = backend.forward([span])
            states = done.hidden[layer]
        said = done.logits.gather(np.tile(ids, (3, 1)))
        for level in range(3):
            assert np.allclose(made[level][cut], said[level], atol=2e-2)
    spec = f"hidden-transfer(head='{tmp_path / HEAD}')"
    prompt = [text.tokens[: text.start].tolist()]
    plain, drafted = (llm.generate(prompt, decoder=each, max_tokens=24)[0] for each in (None, spec))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.rows > plain.stats.rows


def test_layers_that_no_row_can_enter_are_refused_before_texts_are_made(llm):
    last = llm.config.layers - 1
    for taps in ((last,), (-1,), (0, 1), (1, 0, 0)):
        for method in ("hidden-transfer", "flexdraft"):
            with pytest.raises(InvalidInput, match="--taps"):
                HeadShape(method, taps, levels=3).tapped(llm.config)


@pytest.mark.parametrize("taps", [(), (0,)])
def test_masks_guess_in_the_engine_as_they_were_trained(taps, llm, data, tmp_path):
    """What the written folder drafts, run as a head, is what was trained, level by level."""
    shape = HeadShape("flexdraft", taps, inner=32, vocabulary=512, levels=3)
    features = data.features(llm, layers_of((-1,), llm.config.layers), 1e9, lambda *_: None)
    plan = replace(PLAN, rate=0.005, batch=4, steps=8)
    trainer = RowTraining(shape, plan, open_model(MODEL), features, 8)
    before = trainer.evaluate()
    assert trainer.run(tmp_path, lambda: False, lambda *_: None)
    after = trainer.evaluate()
    assert after.levels[0] > before.levels[0] + 0.05, (before, after)

    stored, checkpoint, text = read_head(tmp_path / HEAD), open_model(MODEL), data.texts[0]
    head = build_head(stored, llm.config, lambda name: checkpoint.weights[name].float32())
    for name, kept in trainer.head.parameters.items():
        kept.copy_(torch.from_numpy(stored.tensors[name]))
    with torch.no_grad():
        made = trainer.head.levels(trainer.batch([text], features.of([0])).rows, 3)
    states, known = rows_of(data, llm, 0, head.taps), text.tokens[1:].astype(np.int64)
    assert head.to_target is not None
    for cut in (0, 4):
        end = text.start + cut
        asked = HeadDraft(Memory(), states[:end], known[:end], 0, 3, 1, 3)
        (tree,) = run_head(head, [asked], apply_network)
        best = [int(head.to_target[int(logits[cut].argmax())]) for logits in made]
        assert tree.tokens.tolist() == best
        shares = [float(logits[cut].softmax(-1).max()) for logits in made]
        assert np.allclose(tree.estimates, shares, atol=2e-2)
    spec = f"flexdraft(head='{tmp_path / HEAD}')"
    prompt = [text.tokens[: text.start].tolist()]
    plain, drafted = (llm.generate(prompt, decoder=each, max_tokens=24)[0] for each in (None, spec))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted > 0


@pytest.mark.parametrize("sizes", [{}, {"layers": 2, "inner": 64, "own_rows": False}])
def test_a_kangaroo_adapter_drafts_as_it_was_trained(sizes, llm, data, tmp_path):
    """Level i of training is what the folder guesses of the row i + 1 further on."""
    trainer = training(llm, data, "kangaroo", **{"inner": 0, **sizes})
    before = trainer.evaluate()
    assert trainer.run(tmp_path, lambda: False, lambda *_: None)
    after = trainer.evaluate()
    assert after.levels[0] > before.levels[0] + 0.1, (before, after)
    stored, checkpoint = read_head(tmp_path / HEAD), open_model(MODEL)
    head = build_head(stored, llm.config, lambda name: checkpoint.weights[name].float32())
    assert (head.taps, len(head.blocks)) == ((1,), sizes.get("layers", 1))
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
    for package in ("training", "models"):
        monkeypatch.setattr(f"paradecode.{package}.heads.longspec.WINDOW", 3)
    trainer = training(llm, data, "longspec")
    trainer.head.parameters["layers.0.self_attn.o_proj.weight"].normal_(0, 0.5)
    trainer.export(tmp_path)
    assert drafts_alike(trainer, llm, data, tmp_path) < 2e-3


def test_longspec_learns_far_positions_from_short_texts(llm, data, monkeypatch):
    """All tokens shifted alike change nothing; tokens that stay in front of the others do."""
    trainer = training(llm, data, "longspec")
    head, rows = trainer.head, trainer.batch(data.texts[:2], trainer.features.of([0, 1])).rows
    head.parameters["layers.0.self_attn.o_proj.weight"].normal_(0, 1)
    head.target = replace(head.target, context=2000)
    with torch.no_grad():
        used = torch.cat(head.states(rows, 2))
        head.progress, head.random = 0.0, np.random.default_rng(1)
        places = [head._places(20) for _ in range(200)]
        tried = [torch.cat(head.states(rows, 2)) for _ in range(6)]
        monkeypatch.setattr("paradecode.training.heads.longspec.SINK", 0)
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
    monkeypatch.setattr("paradecode.training.heads.falcon.SHOWN", 100.0)
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
            # A block is shown an answer if one of its two guesses is wrong.
            first = sum(len(each) for each in rows.drafting(0)[:text])
            second = sum(len(each) for each in rows.drafting(1)[:text])
            for i, row in enumerate(own[: len(rows.drafting(1)[text])]):
                guessed = said[0][first + i], said[1][second + i]
                right = guessed[0] == truth[row + 1] and guessed[1] == truth[row + 2]
                assert bool(changed[text][i]) == (not right)
    # Half way fewer are shown, and in the end none.
    monkeypatch.setattr("paradecode.training.heads.falcon.SHOWN", 0.4)
    share = []
    for head.progress in (0.0, 0.5, 1.0):
        with torch.no_grad():
            share.append((head.states(rows, 1)[0] != used[0]).any(-1).float().mean().item())
    assert share[0] > share[1] > share[2] == 0


def test_matrices_of_8_bits_draft_nearly_the_same(llm, data, tmp_path):
    trainer = training(llm, data, plan=replace(PLAN, steps=4))
    trainer.export(tmp_path / "16")
    trainer.bits = 8
    trainer.export(tmp_path / "8")
    fine, rough = (read_head(tmp_path / name / HEAD).tensors for name in ("16", "8"))
    assert fine.keys() == rough.keys()
    for name, values in fine.items():
        assert np.abs(rough[name] - values).max() <= np.abs(values).max() / 250 + 1e-3
    sizes = [(tmp_path / n / HEAD / "model.safetensors").stat().st_size for n in ("8", "16")]
    assert sizes[0] < 0.6 * sizes[1]
    stored = load_file(tmp_path / "8" / HEAD / "model.safetensors")
    stored.pop("fc.weight_scale")
    save_file(stored, tmp_path / "8" / HEAD / "model.safetensors")
    with pytest.raises(InvalidModel, match=r"fc\.weight"):
        read_head(tmp_path / "8" / HEAD)


@pytest.mark.parametrize(("method", "steps"), [("eagle3", 16), ("falcon", 5)])
def test_a_stopped_run_ends_like_an_undisturbed_one(method, steps, llm, data, tmp_path):
    plan = replace(PLAN, steps=steps)
    whole = training(llm, data, method, plan)
    whole.run(tmp_path / "whole", lambda: False, lambda *_: None)
    stopped = training(llm, data, method, plan)
    assert not stopped.run(tmp_path / "cut", lambda: stopped.step == steps // 2, lambda *_: None)
    again = training(llm, data, method, plan)
    again.resume(tmp_path / "cut" / CHECKPOINT)
    assert again.step == steps // 2
    assert again.run(tmp_path / "cut", lambda: False, lambda *_: None)
    files = [tmp_path / name / HEAD / "model.safetensors" for name in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()
    other = training(llm, data, method, replace(plan, rate=1e-3))
    with pytest.raises(InvalidInput, match="rate"):
        other.resume(tmp_path / "cut" / CHECKPOINT)


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_head(source, tmp_path):
    def command(folder: Path) -> list[str]:
        main = "from paradecode.cli import main; main()"
        return [sys.executable, "-c", main, "train", "head", "eagle3", str(folder),
                *settings(source), "--steps", "12"]  # fmt: skip

    killed = tmp_path / "killed"
    process = subprocess.Popen(command(killed), stderr=subprocess.DEVNULL)
    texts = killed / "data" / "texts.jsonl"
    while process.poll() is None and not (texts.exists() and texts.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for folder in (killed, tmp_path / "whole"):
        subprocess.run(command(folder), check=True, env={**os.environ, "COLUMNS": "200"})
    files = [folder / HEAD / "model.safetensors" for folder in (killed, tmp_path / "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()
    report = json.loads((killed / "report.json").read_text())
    assert report["speed"]["equal"] == report["speed"]["outputs"] > 0
    assert report["speed"]["tokens_a_forward"] >= 1


def test_states_are_the_same_from_the_cache_and_computed_again(llm, data, tmp_path):
    kept = Features(llm, data.texts[:70], (0, 1), tmp_path / "a", 1e9)
    kept.fill(lambda *_: None)
    assert len(list((tmp_path / "a").iterdir())) == 2
    fresh = Features(llm, data.texts[:70], (0, 1), tmp_path / "b", 0)
    for one, other in zip(kept.of([0, 69, 5]), fresh.of([0, 69, 5])):
        assert np.array_equal(one, other)
    row = 2 * 2 * llm.config.hidden_size
    first = sum(len(text.tokens) for text in data.texts[:64]) * row
    half = Features(llm, data.texts[:70], (0, 1), tmp_path / "c", first)
    half.fill(lambda *_: None)
    assert [file.name for file in (tmp_path / "c").iterdir()] == ["000000.npy"]
    assert np.array_equal(half.of([69])[0], kept.of([69])[0])


def test_states_of_more_layers_serve_too(llm, data, tmp_path):
    source = HeadData(tmp_path, data.texts[:70], 0)
    last = llm.config.layers - 1
    kept = source.features(llm, (1, 3, last), 1e9, lambda *_: None)
    again = source.features(llm, (last,), 1e9, lambda *_: None)
    assert again.layers == kept.layers
    assert np.array_equal(again.of([3])[0], kept.of([3])[0])
    assert source.features(llm, (0, last), 1e9, lambda *_: None).layers == (0, last)
    other = HeadData(tmp_path, data.texts[1:70], 0)
    assert other.features(llm, (last,), 1e9, lambda *_: None).layers == (last,)


def test_models_without_a_chat_format_go_on_with_what_they_began(tmp_path):
    with LLM(write_folder(tmp_path / "m", "llama"), threads=1) as llm:
        found = make_data(llm, TextSource(own=32, max_tokens=20), tmp_path / "d", lambda *_: None)
        assert len(found.texts) > 20
        for text in found.texts[:3]:
            count, prompt = len(text.tokens) - text.start, text.tokens[: text.start].tolist()
            plain = llm.generate([prompt], max_tokens=count, decoder=None)[0]
            assert plain.token_ids == text.tokens[text.start :].tolist()


def test_texts_are_the_models_own_and_cut_files_are_mended(llm, source, data, tmp_path):
    again = make_data(llm, source, tmp_path, lambda *_: None)
    file, whole = tmp_path / "texts.jsonl", (tmp_path / "texts.jsonl").read_bytes()
    assert [t.tokens.tolist() for t in again.texts] == [t.tokens.tolist() for t in data.texts]
    file.write_bytes(whole[:-100])
    make_data(llm, source, tmp_path, lambda *_: None)
    assert file.read_bytes() == whole
    with pytest.raises(InvalidInput, match="max_tokens"):
        make_data(llm, replace(source, max_tokens=31), tmp_path, lambda *_: None)
    text = next(text for text in data.texts if text.greedy)
    prompt = text.tokens[: text.start].tolist()
    count = len(text.tokens) - text.start
    plain = llm.generate([prompt], max_tokens=count, decoder=None)[0]
    assert plain.token_ids == text.tokens[text.start :].tolist()


def test_no_measured_prompt_is_trained_on(llm, tmp_path):
    measured = MeasuredPrompts()
    for prompt in load_prompts():
        assert measured.has(prompt.turns), prompt.id
        shouted = " ".join(["Please:", *prompt.turns]).upper().replace(",", " ;")
        assert measured.has([shouted]) or len(shouted.split()) < 9
    tasks = task_prompts(400, 0)
    assert sum(measured.has(task.turns) for task in tasks) < 8
    assert not any(
        "{" + kind in t for task in tasks for t in task.turns for kind in ("topic", "per")
    )

    lines = [{"prompt": load_prompts()[0].turns[0]}, {"prompt": "How do kites stay in the air?"}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    source = TextSource(prompts=(str(file),), own=0, max_tokens=16, length=256)
    found = make_data(llm, source, tmp_path / "data", lambda *_: None)
    assert (found.refused, len(found.texts)) == (1, 1)
    avoided = TextSource(prompts=(str(file),), own=0, avoid=(str(file),), max_tokens=16)
    with pytest.raises(InvalidInput, match="prompts"):
        make_data(llm, avoided, tmp_path / "none", lambda *_: None)


def test_the_commonest_tokens_are_drafted():
    texts = [HeadText(np.array([9, 5, 7, 7, 3], np.int32), 1, True),
             HeadText(np.array([9, 9, 7, 3, 3], np.int32), 2, True)]  # fmt: skip
    assert common_tokens(texts, 2, 10).tolist() == [3, 7]
    assert common_tokens(texts, 4, 10).tolist() == [0, 3, 5, 7]
    assert common_tokens(texts, 99, 10).tolist() == list(range(10))


def test_the_law_is_found_again_and_knows_what_it_does_not_know():
    def run(tokens: float, parameters: float, noise: float = 0.0) -> ShortRun:
        gain = 0.4 + 0.05 * np.log2(tokens / 1e5) + 0.02 * np.log2(parameters / 1e6) + noise
        return ShortRun(int(tokens), int(parameters), float(gain))

    places = [(2**i * 1e5, 1e6) for i in range(4)] + [(8e5, 2e6), (8e5, 4e6)]
    law = ScalingLaw([run(*place) for place in places])
    assert law.gains == pytest.approx((0.05, 0.02), abs=1e-6)
    said = law.at(3.2e6, 1e6)
    assert said.value == pytest.approx(1.65, abs=1e-5)
    assert said.high - said.low < 1e-3
    noise = np.random.default_rng(0).normal(0, 0.02, (300, len(places)))
    inside = 0
    for row in noise:
        rough = ScalingLaw([run(*place, noise=n) for place, n in zip(places, row)]).at(3.2e6, 1e6)
        inside += rough.low <= 1.65 <= rough.high
    assert inside > 0.93 * len(noise)
    with pytest.raises(InvalidInput, match="runs"):
        ScalingLaw([run(2**i * 1e5, 1e6) for i in range(6)])


def test_the_plan_command_fits_short_runs(source, tmp_path):
    arguments = [str(tmp_path), *settings(source), "--steps", "3"]
    done = CliRunner().invoke(app, ["train", "plan", "medusa", *arguments])
    assert isinstance(done.exception, InvalidInput)
    done = CliRunner().invoke(app, ["train", "plan", "eagle3", *arguments])
    assert done.exception is None, done.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["runs"]) == 6
    assert all(each["low"] <= each["value"] <= each["high"] for each in report["forecasts"])


def test_wrong_settings_are_refused_by_name(llm, data, tmp_path):
    with pytest.raises(InvalidInput, match="METHOD"):
        HeadShape("eagle9")
    with pytest.raises(InvalidInput, match="--layers"):
        HeadShape("mtp", layers=2)
    with pytest.raises(InvalidInput, match="--taps"):
        HeadShape("eagle3", taps=(0, 7)).tapped(llm.config)
    (tmp_path / "t.jsonl").write_text('{"texts": [{"prompt": [1]}], "refused": 0}\n')
    with pytest.raises(InvalidInput, match="texts"):
        read_texts(tmp_path / "t.jsonl", 64)
