"""Trained parts of canvas methods: what is logged, learned and reported."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
import torch.nn.functional as F
from unmasking_models import batched, front, model_folder, quiet, texts, whole

from paradecode.models import catalogue
from paradecode.models.catalogue import open_model
from paradecode.models.tiny import tiny_checkpoint
from paradecode_lab.training.running import CHECKPOINT
from paradecode_lab.training.unmasking.block_fits import (
    CertaintySettings,
    fit_certainty,
    fit_short,
    forced,
)
from paradecode_lab.training.unmasking.block_masks import BlockSettings, complementary
from paradecode_lab.training.unmasking.corrections import (
    RefineSettings,
    corrupt,
    fit_corrections,
)  # fmt: skip
from paradecode_lab.training.unmasking.filter_fit import FilterSettings, fit_filter
from paradecode_lab.training.unmasking.filter_samples import (
    FilterSamples,
    record_filter_samples,
)  # fmt: skip
from paradecode_lab.training.unmasking.fine_tune import FineTuning
from paradecode_lab.training.unmasking.short_decodings import record_short_decodings
from paradecode_lab.training.unmasking.trajectories import (
    PROMPT,
    Trajectories,
    record_trajectories,
)  # fmt: skip
from paradecode_lab.training.unmasking.workload import CanvasWorkload

CPU = torch.device("cpu")
SMALL = CanvasWorkload(limit=6, max_tokens=12)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def llm(folder):
    with front(folder) as llm:
        yield llm


def test_prompts_are_different_and_never_held_out():
    from paradecode_lab.measure.tasks.task import is_held_out
    from paradecode_lab.measure.tasks.tasks import SETS

    workload = CanvasWorkload(limit=50)
    found = workload.texts()
    assert len(set(found)) == len(found) == 50
    assert not any(is_held_out(text) for text in found)
    assert found == workload.texts() != replace(workload, seed=1).texts()
    graded = replace(workload, tasks="graded")
    assert {task.name for task, _ in graded.drawn()} == {task.name for task in SETS["graded"]}
    assert not any(is_held_out(text) for text in graded.texts())
    with pytest.raises(InvalidInput, match=r"tasks.*'hard'.*simple, graded"):
        replace(workload, tasks="hard", prompts=Path("any"))


def test_the_oracle_follows_the_reference(llm):
    made = record_trajectories(llm, SMALL, 8, quiet)
    samples = record_filter_samples(llm, SMALL, 8, quiet)
    assert samples.confidence.shape == samples.final.shape == samples.judged.shape
    assert set(np.unique(samples.final)) <= {0.0, 1.0}
    assert not (samples.final > samples.judged).any()
    for prompt in range(len(made)):
        mine = samples.prompt == prompt
        # The oracle never needs more forwards than static decoding.
        assert 1 <= mine.sum() <= made.step[prompt].max() + 1


@pytest.mark.parametrize("kind", ["llada", "dream", "sdar"])
def test_whole_canvases_give_the_logits_of_the_engine(kind):
    from paradecode.backends import open_backend
    from paradecode.backends.interface import Span

    config, weights = tiny_checkpoint(kind)
    model = batched(kind)
    tokens = np.array([[5, 6, config.mask_token, 8, 9, config.mask_token, 11]])
    inside = np.ones((1, 7), bool)
    padded = np.pad(tokens, ((0, 0), (0, 3)))
    states = model.states(
        torch.from_numpy(padded), torch.from_numpy(np.pad(inside, ((0, 0), (0, 3))))
    )
    got = model.logits(states)[0, :7].numpy()
    backend = open_backend("torch", config, weights, dtype="fp64", threads=1)
    backend.reserve(1)
    places = np.arange(7, dtype=np.int32)
    seen = model.seen(torch.arange(7)).numpy()
    span = Span(
        pages=np.zeros(1, np.int32), tokens=tokens[0].astype(np.int32), positions=places,
        slots=places, context=0, logits=places, mask=seen,
    )  # fmt: skip
    (wanted,) = backend.forward([span])
    ids = np.tile(np.delete(np.arange(config.vocab_size), config.mask_token), (7, 1))
    assert np.allclose(wanted.logits.gather(ids), np.take_along_axis(got, ids, 1), atol=2e-3)
    assert np.isinf(got[:, config.mask_token]).all()


def test_samples_come_back_and_belong_to_one_workload(llm, tmp_path):
    origin = SMALL.origin(llm, "filter", 8)
    assert origin != replace(SMALL, seed=1).origin(llm, "filter", 8)
    assert origin != SMALL.origin(llm, "filter", 4)
    samples, path = record_filter_samples(llm, SMALL, 8, quiet), tmp_path / "samples"
    samples.save(path, origin)
    again = FilterSamples.load(path, origin, B=8)
    assert all(np.array_equal(v, getattr(again, k)) for k, v in vars(samples).items())
    for bad in ((replace(origin, workload="other"), 8), (origin, 4)):
        with pytest.raises(InvalidInput, match="--samples"):
            FilterSamples.load(path, bad[0], B=bad[1])
    made = record_trajectories(llm, SMALL, 8, quiet)
    made.save(path, origin)
    again = Trajectories.load(path, origin, vocab_size=llm.config.vocab_size)
    assert np.array_equal(again.tokens, made.tokens)
    assert np.array_equal(again.step, made.step)
    with pytest.raises(InvalidInput, match="damaged"):
        Trajectories.load(path, origin, vocab_size=2)
    with pytest.raises(InvalidInput, match="--samples"):
        FilterSamples.load(path, origin, B=8)


def test_another_model_of_the_same_name_is_another_origin(llm, folder, tmp_path):
    """The digest of the weights must tell models apart that have the same name."""
    with front(model_folder(tmp_path / folder.name, seed=1)) as other:
        assert other.model == llm.model
        ours, theirs = (SMALL.origin(each, "filter", 8) for each in (llm, other))
        assert ours.workload == theirs.workload
        assert ours.weights != theirs.weights
        record_filter_samples(other, SMALL, 8, quiet).save(tmp_path / "samples", theirs)
    with pytest.raises(InvalidInput, match="other weights"):
        FilterSamples.load(tmp_path / "samples", ours, B=8)
    with front(folder) as again:
        assert SMALL.origin(again, "filter", 8) == ours


def test_trajectories_are_those_of_static(llm):
    made = record_trajectories(llm, SMALL, 4, quiet)
    prompts = SMALL.encoded(llm)
    plain = llm.complete(prompts, max_tokens=12, decoder="static(block_length=4)")
    for row, (prompt, output) in enumerate(zip(prompts, plain, strict=True)):
        start, end = len(prompt), len(prompt) + len(output.token_ids)
        assert made.tokens[row, :end].astype(int).tolist() == [*prompt, *output.token_ids]
        assert (made.step[row, :start] == PROMPT).all()
        assert (made.step[row, start:end] >= 0).all()


def learnable(count: int = 400) -> FilterSamples:
    """Return samples in which a proposal is final if the confidence to its right is high.

    Its own confidence tells nothing.
    """
    random = np.random.default_rng(0)
    confidence = random.random((count, 4)).astype(np.float32)
    final = (np.roll(confidence, -1, axis=1) > 0.5).astype(np.float32)
    prompt = np.repeat(np.arange(count // 8), 8).astype(np.float32)
    return FilterSamples(confidence, final, np.ones_like(final), prompt)


def test_the_filter_learns_what_can_be_learnt():
    samples = learnable()
    settings = FilterSettings(epochs=800)
    made, report = fit_filter(samples, settings, quiet)
    assert report.filter.auc > 0.95 > 0.65 > report.confidence.auc
    assert report.filter.log_loss < report.constant.log_loss / 2
    assert report.training + report.held_out < len(samples)
    again, same = fit_filter(samples, settings, quiet)
    assert same == report
    assert np.array_equal(again.tensors["w1"], made.tensors["w1"])
    for few in (10, 400):
        part = FilterSamples(*(v[:few] for v in vars(samples).values()))
        if few == 400:
            part = replace(part, final=np.ones_like(part.final))
        with pytest.raises(InvalidInput, match="samples"):
            fit_filter(part, settings, quiet)


def test_corruption_is_what_it_says():
    model, made = batched("llada"), texts()
    settings = RefineSettings(corrupted=0.5, own=0.5)
    batch = corrupt(model, made, np.arange(20), settings, np.random.default_rng(0))
    answer = torch.from_numpy(made.step[:20] >= 0)
    kinds = batch.masked.int() + batch.corrupted.int() + batch.kept.int()
    assert torch.equal(kinds == 1, answer)
    assert (batch.tokens[batch.masked] == 95).all()
    assert (batch.tokens[batch.corrupted] != batch.right[batch.corrupted]).all()
    assert (batch.tokens[batch.corrupted] != 95).all()
    assert torch.equal(batch.tokens[batch.kept], batch.right[batch.kept])
    visible = int((answer & ~batch.masked).sum())
    assert 0.3 < int(batch.corrupted.sum()) / visible < 0.6


@pytest.mark.wide
def test_a_model_learns_to_correct():
    model = batched("llada")
    settings = RefineSettings(corrupted=0.2, steps=200, batch=16, rate=3e-3)
    report = fit_corrections(model, texts(160), settings, whole)
    assert report.before.corrected < 0.3 < 0.7 < report.after.corrected
    assert report.after.kept > 0.9
    assert not any(weight.requires_grad for weight in model.parameters.values())


def test_two_rows_ask_for_every_token_of_a_block_once():
    step = np.full((60, 15), -3.0, np.float32)
    step[:, :3], step[:, 3:13], step[:, 13] = PROMPT, np.arange(10), -1
    masked, asked = complementary(step, 4, np.random.default_rng(0))
    assert masked.shape == asked.shape == (120, 15)
    assert not (asked & ~masked).any()
    seen = set()
    for row in range(60):
        together = asked[row] | asked[60 + row]
        assert not (asked[row] & asked[60 + row]).any()
        (places,) = np.nonzero(together)
        assert places.tolist() in ([3, 4, 5, 6], [7, 8, 9, 10], [11, 12])
        seen.add(places[0])
        for half in (row, 60 + row):
            assert masked[half, places[-1] + 1 : 14].all()  # Later and undecided ones.
            assert not masked[half, : places[0]].any()
    assert seen == {3, 7, 11}


def test_the_shortest_right_text_is_kept(llm, monkeypatch):
    workload = CanvasWorkload(limit=12, max_tokens=12)
    with pytest.raises(InvalidInput, match="answers no prompt rightly"):
        record_short_decodings(llm, workload, 8, 2, quiet)
    monkeypatch.setattr(CanvasWorkload, "drawn", lambda self: [])  # As a file of prompts.
    texts_of = [instance.prompt for _, instance in DRAWN(workload)]
    monkeypatch.setattr(CanvasWorkload, "texts", lambda self: texts_of)
    one, several = (record_short_decodings(llm, workload, 8, n, quiet) for n in (1, 5))
    assert len(one) == len(several) == 12
    forwards, fewer = (made.step.max(axis=1) for made in (one, several))
    assert (fewer <= forwards).all()
    assert (fewer < forwards).any()
    plain = llm.complete(workload.encoded(llm), max_tokens=12, decoder="r2(block_length=8)")
    for row, (prompt, output) in enumerate(zip(workload.encoded(llm), plain, strict=True)):
        end = len(prompt) + len(output.token_ids)
        assert one.tokens[row, :end].astype(int).tolist() == [*prompt, *output.token_ids]
        assert forwards[row] + 1 == output.stats.forwards


@pytest.mark.wide
def test_a_model_becomes_surer_of_its_short_texts():
    model = batched("llada")
    settings = BlockSettings(block=4, steps=150, batch=8, rate=3e-3)
    report = fit_short(model, texts(160), settings, whole)
    assert report.before.sure < 0.3 < 0.7 < report.after.sure <= report.after.right
    assert report.forwards == 8
    with pytest.raises(InvalidInput, match="samples"):
        fit_short(batched("llada"), texts(9), settings, whole)


def test_only_right_predictions_become_surer():
    random = np.random.default_rng(0)
    logits = torch.from_numpy(random.standard_normal((40, 6))).requires_grad_()
    right = torch.where(torch.arange(40) < 25, logits.argmax(-1), (logits.argmax(-1) + 1) % 6)
    p = (2 * logits[:25]).softmax(-1)
    wanted = F.cross_entropy(logits, right) - 3 * (p * p.log()).sum(-1).mean()
    assert torch.allclose(forced(logits, right, 3.0), wanted)
    banned = torch.cat([logits, torch.full((40, 1), -torch.inf)], 1)
    assert torch.allclose(forced(banned, right, 3.0), wanted)
    (forced(banned, right, 3.0) - forced(banned, right, 0.0)).backward()
    assert not logits.grad[25:].any()
    assert (logits.grad[:25].abs().sum(1) > 0).all()


def test_certainty_is_forced():
    """Training with weight on the entropy makes predictions certain that are not certain by nature.

    Each token is one of two at random, with the chances 3/4 and 1/4."""
    coins = np.random.default_rng(0).random((160, 11)) < 0.75
    made = replace(texts(160), tokens=np.where(coins, 6, 7).astype(np.float32))
    settings = CertaintySettings(block=4, steps=60, batch=8, rate=1e-3)
    plain, surer = (
        fit_certainty(batched("llada"), made, replace(settings, weight=weight), whole)
        for weight in (0.0, 2.0)
    )
    assert plain.before == surer.before
    assert plain.after.entropy > 0.5 > 0.35 > surer.after.entropy
    assert surer.after.right > 0.65 > 0.5 > plain.after.sure
    assert surer.after.sure > 0.6


def test_certainty_masks_each_token_of_a_block_with_chance_one_half(monkeypatch):
    shares = []

    def masked(step, block, random, level=None):
        found = complementary(step, block, random, level)
        asked = found[1].reshape(2, len(step), -1).sum(2)
        shares.extend(asked[0] / asked.sum(0))
        return found

    monkeypatch.setattr("paradecode_lab.training.unmasking.block_masks.complementary", masked)
    settings = CertaintySettings(block=16, steps=12, batch=16)
    model = batched("llada")

    def noted(training: FineTuning) -> None:
        shares.clear()  # Forget the held-out texts.
        whole(training)
        assert np.std(shares) < 0.2  # A drawn share would give 0.3.
        assert 0.45 < np.mean(shares) < 0.55

    fit_certainty(model, texts(), settings, noted)


@pytest.mark.first(1)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_stopped_training_goes_on_as_if_it_had_not_stopped(tmp_path, steps):
    settings = CertaintySettings(block=4, steps=5, batch=4)
    models = batched("llada"), batched("llada")
    fit_certainty(models[0], texts(), settings, whole)

    def stop(training: FineTuning) -> None:
        left = iter(range(steps + 1))
        assert not training.run(tmp_path, lambda: next(left) == steps, lambda *seen: None)

    def go_on(training: FineTuning) -> None:
        training.resume(tmp_path / CHECKPOINT)
        assert training.step == steps
        whole(training)

    fit_certainty(batched("llada"), texts(), settings, stop)
    fit_certainty(models[1], texts(), settings, go_on)
    for name, weight in models[0].parameters.items():
        assert torch.equal(weight, models[1].parameters[name]), name
    for other in (replace(settings, weight=1.0), replace(settings, rate=2e-4)):
        with pytest.raises(InvalidInput, match="name a new folder"):
            fit_certainty(batched("llada"), texts(), other, go_on)
    with pytest.raises(InvalidInput, match="texts"):
        fit_certainty(batched("llada"), texts(seed=1), settings, go_on)
    with pytest.raises(InvalidInput, match="objective"):
        fit_short(batched("llada"), texts(), BlockSettings(block=4, steps=5, batch=4), go_on)


COMMANDS = {"unmask-filter": "filter", "joint-sampler": "layer", "refine": "", "r2": "",
            "dparallel": ""}  # fmt: skip
QUICK = {
    "unmask-filter": ("--epochs", 20), "joint-sampler": ("--steps", 2, "--depth", 1),
    "refine": ("--steps", 2), "r2": ("--steps", 2, "--draws", 2),
    "dparallel": ("--steps", 2),
}  # fmt: skip
FOLDERS = {
    "refine": "refine(least=0.5)", "r2": "r2",
    "dparallel": "threshold(score=entropy,threshold=0.5)",
}  # fmt: skip
DRAWN = CanvasWorkload.drawn


@pytest.mark.first(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_from_prompts_to_a_part_that_decodes(folder, tmp_path, command, monkeypatch):
    if command == "r2":  # A random model answers no task rightly.
        found = CanvasWorkload(limit=24).texts()
        monkeypatch.setattr(CanvasWorkload, "drawn", lambda self: [])
        monkeypatch.setattr(CanvasWorkload, "texts", lambda self: found)
    output, samples = tmp_path / "out", tmp_path / "samples"
    arguments = [
        "--model", folder, "--backend", "native", "--threads", 1, "--limit", 24,
        "--max-tokens", 12, "--block", 8, "--samples", samples, "--json", *QUICK[command],
    ]  # fmt: skip
    first = run(command, output, *arguments)
    report = json.loads(first[first.index("{") :])
    assert report["training"]
    assert report["held_out"]
    again = run(command, tmp_path / "again", *arguments)  # From the samples, without decoding.
    assert {**json.loads(again[again.index("{") :]), "file": report["file"]} == report
    with pytest.raises(InvalidInput, match="another workload"):
        run(command, tmp_path / "other", *arguments, "--seed", 1)
    model, spec = folder, f"{parse_name(command)}({COMMANDS[command]}='{output}')"
    if command in FOLDERS:
        model, spec = output / "model", FOLDERS[command]
        changed = open_model(model).weights["embed"].float32()
        assert not np.array_equal(changed, open_model(folder).weights["embed"].float32())
    with front(model) as llm:
        made = llm.complete("copy: Ana Bob", max_tokens=12, decoder=spec)
    assert 1 <= len(made.token_ids) <= 12


def parse_name(command: str) -> str:
    return "learn2pd" if command == "unmask-filter" else command


@pytest.mark.parametrize("command", COMMANDS)
def test_a_causal_model_is_refused(tmp_path, command):
    folder = model_folder(tmp_path / "causal")
    config = json.loads((folder / "config.json").read_text())
    del config["attention"], config["mask_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match="diffusion model"):
        run(command, tmp_path / "out", "--model", folder, "--limit", 2)


@pytest.mark.parametrize("command", FOLDERS)
def test_a_model_is_needed_that_can_be_written(tmp_path, command, monkeypatch):
    known = replace(open_model(model_folder(tmp_path / "model")), source="org/name")
    monkeypatch.setattr(catalogue, "open_model", lambda name: known)
    with pytest.raises(InvalidInput, match=r"--model.*org/name"):
        run(command, tmp_path / "out", "--model", "org/name")
    assert not (tmp_path / "out").exists()
