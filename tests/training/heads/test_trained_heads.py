"""Draft heads of all methods: they learn, stop and continue, and are written, read and refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.heads import read_head

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from head_training import MODEL, PLAN, drafts_alike, learns, training

from paradecode_lab.training.heads.initial import EXITS, METHODS, OF_ROWS, HeadShape
from paradecode_lab.training.heads.scaling import ScalingLaw, ShortRun
from paradecode_lab.training.heads.texts import TextSource
from paradecode_lab.training.heads.training import HEAD
from paradecode_lab.training.running import CHECKPOINT

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(source: TextSource) -> list[str]:
    """Return options that the commands share."""
    return ["--model", MODEL, "--prompts", *source.prompts, "--own", "0", "--max-tokens", "32",
            "--length", "96", "--batch", "4", "--vocabulary", "128", "--held-out", "0.1",
            "--threads", "1"]  # fmt: skip


OF_LEVELS = [each for each in METHODS if each not in (*EXITS, *OF_ROWS)]
"""Methods whose networks draft all levels without running the target."""


@pytest.mark.first(1)
@pytest.mark.parametrize(("method", "bits"), [*((each, 16) for each in OF_LEVELS), ("eagle3", 8)])
def test_training_beats_the_untrained_head_and_the_folder_drafts_alike(
    method, bits, llm, data, tmp_path
):
    layers = 2 if method in ("p-eagle", "clover-2", "dovetail") else 1
    trainer = training(llm, data, method, layers=layers, own_rows=bits == 16)
    trainer.bits = bits
    learns(trainer, tmp_path, 0.1)
    drafts_alike(trainer, llm, data, tmp_path)


@pytest.mark.first(4)
@pytest.mark.parametrize("method", METHODS)
def test_every_head_of_8_bits_is_read_again(method, llm, data, tmp_path):
    trainer = training(llm, data, method)
    trainer.bits = 8
    trainer.export(tmp_path)
    found = read_head(tmp_path / HEAD).tensors
    for name, values in trainer.head.stored().items():
        assert np.abs(found[name] - values).max() <= np.abs(values).max() / 250 + 1e-3


@pytest.mark.wide
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


@pytest.mark.first(1)
@pytest.mark.parametrize("method", ["eagle3", "falcon", "ppd", "m2r2"])
def test_a_stopped_run_ends_like_an_undisturbed_one(method, llm, data, tmp_path):
    plan, inner = replace(PLAN, steps=4, batch=2), 0 if method in OF_ROWS else 64
    whole, stopped, again = (training(llm, data, method, plan, inner=inner) for _ in range(3))
    whole.run(tmp_path / "whole", lambda: False, lambda *_: None)
    assert not stopped.run(tmp_path / "cut", lambda: stopped.step == 2, lambda *_: None)
    again.resume(tmp_path / "cut" / CHECKPOINT)
    assert again.step == 2
    assert again.run(tmp_path / "cut", lambda: False, lambda *_: None)
    one, other = ([*(tmp_path / name / HEAD).glob("*.safetensors")] for name in ("whole", "cut"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other] != []
    changed = training(llm, data, method, replace(plan, rate=1e-3), inner=inner)
    with pytest.raises(InvalidInput, match="rate"):
        changed.resume(tmp_path / "cut" / CHECKPOINT)


def test_the_checkpoint_of_another_model_is_refused(llm, data, tmp_path):
    trainer, path = training(llm, data), tmp_path / CHECKPOINT
    trainer.save(path)
    good = torch.load(path)
    name = next(name for name, tensor in good["weights"].items() if tensor.ndim == 2)
    one = {name: good["weights"][name][:1]}  # PyTorch would copy it to every row.
    for changed, named in (
        ({"weights": {**good["weights"], **one}}, name),
        ({"average": {**good["average"], **one}}, name),
        ({"target": "another"}, "target"),
    ):
        torch.save({**good, **changed}, path)
        with pytest.raises(InvalidInput, match=rf"^{named}: .*begun"):
            trainer.resume(path)


KINDS = ("eagle3", "medusa", "mtp", "kangaroo", "ppd")
"""The methods whose files differ most from one another."""


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "method", [*KINDS, *(pytest.param(each, marks=pytest.mark.slow) for each in METHODS
                         if each not in KINDS)],
)  # fmt: skip
def test_a_training_begins_with_the_head_of_another(method, llm, data, tmp_path):
    trained = training(llm, data, method, replace(PLAN, steps=2, averaging=0.0))
    trained.run(tmp_path, lambda: False, lambda *_: None)
    again = training(llm, data, method, before=read_head(tmp_path / HEAD))
    made, wanted = again.head.stored(), trained.head.stored()
    assert made.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.allclose(made[name], values, rtol=2e-3, atol=1e-5), name  # Files have 16 bits.
    assert again.evaluate().levels[0] == pytest.approx(trained.evaluate().levels[0], abs=0.01)
    again.save(tmp_path / "again")
    with pytest.raises(InvalidInput, match=r"^from: "):
        training(llm, data, method).resume(tmp_path / "again")


def test_rows_of_tokens_that_both_heads_draft_are_taken(llm, data, tmp_path):
    trained = training(llm, data, plan=replace(PLAN, steps=2), vocabulary=64)
    trained.run(tmp_path, lambda: False, lambda *_: None)
    before, fresh = read_head(tmp_path / HEAD), training(llm, data)
    made = training(llm, data, before=before).stored()
    numbers = (each.tensors["d2t"] for each in (made, before))
    ids, old = (each + np.arange(len(each)) for each in numbers)
    assert (len(ids), len(old)) == (128, 64)
    for token, row in zip(ids, made.tensors["lm_head.weight"]):
        of = before.tensors["lm_head.weight"][old == token]
        untrained = fresh.stored().tensors["lm_head.weight"][ids == token]
        assert np.array_equal(row, (of if len(of) else untrained)[0])


def test_a_head_of_other_sizes_or_another_kind_begins_no_training(llm, data, tmp_path):
    training(llm, data).export(tmp_path)
    before = read_head(tmp_path / HEAD)
    for method, sizes, named in (
        ("eagle3", {"inner": 32}, r"mlp\.down_proj"), ("eagle3", {"layers": 2}, r"layers\.1"),
        ("eagle3", {"taps": (0, 1)}, r"layers .*, not \[0, 1\]"), ("mtp", {}, "kind mtp"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=f"--from.*{named}"):
            training(llm, data, method, before=before, **sizes)


@pytest.mark.wide
def test_the_command_begins_with_a_head(llm, data, source, tmp_path):
    trained = training(llm, data, plan=replace(PLAN, steps=2))
    trained.run(tmp_path / "first", lambda: False, lambda *_: None)
    few, output = tmp_path / "few.jsonl", tmp_path / "second"
    few.write_text("\n".join(Path(source.prompts[0]).read_text().splitlines()[:24]))
    common = [*settings(replace(source, prompts=(str(few),))), "--inner", "64", "--steps", "1"]
    begins = [str(output), *common, "--rate", "1e-8", "--from"]
    wrong = CliRunner().invoke(app, ["train", "head", "eagle3", *begins, str(tmp_path)])
    assert isinstance(wrong.exception, InvalidModel)
    assert not output.exists()  # No text was made for it.
    first = str(tmp_path / "first" / HEAD)
    done = CliRunner().invoke(app, ["train", "head", "eagle3", *begins, first])
    assert done.exception is None, done.output
    made, before = (read_head(folder / HEAD).tensors for folder in (output, tmp_path / "first"))
    name = "layers.0.mlp.up_proj.weight"
    assert np.allclose(made[name], before[name], atol=1e-4)


def test_the_law_is_found_again_and_knows_what_it_does_not_know():
    def run(tokens: float, parameters: float, noise: float = 0.0) -> ShortRun:
        gain = 0.4 + 0.05 * np.log2(tokens / 1e5) + 0.02 * np.log2(parameters / 1e6) + noise
        return ShortRun(int(tokens), int(parameters), float(gain))

    places = [(2**i * 1e5, 1e6) for i in range(4)] + [(8e5, 2e6), (8e5, 4e6)]
    law = ScalingLaw([run(*place) for place in places])
    assert law.gains == pytest.approx((0.05, 0.02), abs=1e-6)
    said = law.at(3.2e6, 4e6)
    assert said.value == pytest.approx(1.69, abs=1e-5)
    assert said.high - said.low < 1e-3
    noise = np.random.default_rng(0).normal(0, 0.02, (300, len(places)))
    inside = 0
    for row in noise:
        rough = ScalingLaw([run(*place, noise=n) for place, n in zip(places, row)]).at(3.2e6, 1e6)
        inside += rough.low <= 1.65 <= rough.high
    assert inside > 0.93 * len(noise)
    with pytest.raises(InvalidInput, match="runs"):
        ScalingLaw([run(2**i * 1e5, 1e6) for i in range(6)])


@pytest.mark.wide
@pytest.mark.parametrize(("method", "widths"), [
    ("eagle3", [512, 256, 128]), ("kangaroo", [0, 256, 128]), ("m2r2", [24, 12, 6]),
])  # fmt: skip
def test_the_plan_command_fits_short_runs(method, widths, llm, data, source, tmp_path):
    """The runs must train heads of the usual width and narrower ones; Kangaroo's has no MLP."""
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(Path(source.prompts[0]).read_text().splitlines()[:80]))
    arguments = [str(tmp_path), *settings(replace(source, prompts=(str(few),))), "--steps", "3"]
    done = CliRunner().invoke(app, ["train", "plan", method, *arguments])
    assert done.exception is None, done.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["runs"]) == 6
    assert all(each["low"] <= each["value"] <= each["high"] for each in report["forecasts"])
    assert {*widths} == {int(each.name.split("-")[1]) for each in tmp_path.glob("*-*")}
    usual = training(llm, data, method, inner=0).parameters
    assert [run["parameters"] for run in report["runs"][:4]] == [usual] * 4


def test_heads_of_one_size_are_not_planned(source, tmp_path):
    done = CliRunner().invoke(app, ["train", "plan", "medusa", str(tmp_path), *settings(source)])
    assert isinstance(done.exception, InvalidInput)


def test_wrong_settings_are_refused_by_name(llm):
    with pytest.raises(InvalidInput, match="METHOD"):
        HeadShape("eagle9")
    with pytest.raises(InvalidInput, match="--layers"):
        HeadShape("mtp", layers=2)
    with pytest.raises(InvalidInput, match="--taps"):
        HeadShape("eagle3", taps=(0, 7)).tapped(llm.config)


def test_layers_that_no_row_can_enter_are_refused_before_texts_are_made(llm):
    last = llm.config.layers - 1
    for taps in ((last,), (-1,), (0, 1), (1, 0, 0)):
        for method in ("hidden-transfer", "flexdraft", *EXITS):
            with pytest.raises(InvalidInput, match="--taps"):
                HeadShape(method, taps, levels=3).tapped(llm.config)
