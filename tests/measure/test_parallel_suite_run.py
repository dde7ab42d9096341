"""The parallel suite run on a tiny untrained model, from the command line to the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_llm import write_model

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.llm import LLM
from paradecode.measure.provenance import digest, weights_of
from paradecode.measure.suites.parallel import run as running
from paradecode.measure.suites.parallel.journal import Journal
from paradecode.measure.suites.parallel.methods import (
    cache_of,
    canonical,
    default_methods,
    plain_of,
    without_cache,
)
from paradecode.measure.suites.parallel.run import choose_tasks, make_items, play, run_all, units_of
from paradecode.measure.suites.parallel.suite import ParallelPlan
from paradecode.measure.tasks.tasks import BY_NAME
from paradecode.methods.canvas.caches import CACHES
from paradecode.methods.registry import methods, parse

pytest.importorskip("torch")
SHORT = ["-d", "threshold(threshold=0.01)", "-d", "freedave", "--task", "copy", "--task", "shuffle"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "diffusion")


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, threads=1) as opened:
        yield opened


def paradecode(*arguments: str) -> int:
    """Exit status of the command."""
    from typer.testing import CliRunner

    from paradecode.cli import app

    return CliRunner().invoke(app, ["bench", "--suite", "parallel", *arguments]).exit_code


def test_from_the_command_line_to_the_files(folder, tmp_path):
    output = tmp_path / "p.json"
    arguments = ["-m", str(folder), "--threads", "1", *SHORT, "--instances", "3", "-o", str(output)]
    assert paradecode(*arguments) == 0
    data = json.loads(output.read_text())
    assert data["methods"] == ["static", "threshold(threshold=0.01)", "freedave"]
    assert len(data["items"]) == 6
    assert len(data["runs"]) == 18
    by_name = {entry["method"]: entry for entry in data["aggregates"]["methods"]}
    assert by_name["static"]["total"]["items"] == 6
    fast = by_name["threshold(threshold=0.01)"]["versus"]
    assert fast["forwards"]["value"] > 4
    assert by_name["freedave"]["versus"]["identical"] == 6
    assert len(data["aggregates"]["verdicts"]) == 4
    text = output.with_suffix(".md").read_text()
    assert "`threshold(threshold=0.01)`" in text
    assert paradecode("compare", str(output), str(output)) == 0
    assert paradecode("compare", str(output), str(tmp_path / "none.json")) == 1


def test_what_was_measured_is_not_measured_again(folder, tmp_path, monkeypatch):
    output = tmp_path / "p.json"
    arguments = ["-m", str(folder), "--threads", "1", *SHORT, "-o", str(output)]
    real, calls = running.play, []

    def interrupted(llm, method, unit, seed):
        calls.append((method, unit[0].id))
        if len(calls) == 7:
            raise KeyboardInterrupt
        return real(llm, method, unit, seed)

    monkeypatch.setattr(running, "play", interrupted)
    assert paradecode(*arguments, "--instances", "2") == 130
    assert not output.exists()
    before = output.with_suffix(".jsonl").read_text().splitlines()
    assert len(before) == 1 + 6 - 3  # Settings; six calls, of which three warmed up.
    calls[:] = [("", "")] * 100
    assert paradecode(*arguments, "--instances", "2") == 0
    after = output.with_suffix(".jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == 1 + 2 * 2 * 3
    calls.clear()
    calls[:] = [("", "")] * 100
    assert paradecode(*arguments, "--instances", "2") == 0
    assert len(calls) == 100
    assert paradecode(*arguments, "--instances", "2", "--seed", "1") == 1


def test_answers_and_their_costs(llm):
    items = make_items(llm, choose_tasks(["copy", "addition"]), 2, seed=0)
    assert [item.canvas for item in items] == [32, 32, 64, 64]
    assert items == make_items(llm, choose_tasks(["addition", "copy"]), 2, seed=0)
    run = play(llm, "static", items[:2])
    for item, answer in zip(items, run.answers):
        assert answer.right == BY_NAME["copy"].accepts(
            item.prompt, item.answer, answer.text.strip()
        )
        assert answer.forwards <= item.canvas
        assert answer.deciding <= min(answer.forwards, len(answer.tokens))
        assert answer.rows >= answer.forwards * item.canvas
    once = play(llm, "static(steps=1)", items[:1]).answers[0]
    assert (once.forwards, once.deciding) == (1, 1)


def test_a_right_answer_is_counted_as_right(llm, monkeypatch):
    (item,) = make_items(llm, choose_tasks(["copy"]), 1, seed=0)
    answer = play(llm, "static", [item]).answers[0].text.strip()
    told = running.Item(item.id, "copy", item.prompt, answer, item.canvas)
    assert play(llm, "static", [told]).answers[0].right


def test_a_method_that_fails_is_left_out_and_the_others_go_on(llm, tmp_path, monkeypatch):
    units = units_of(make_items(llm, choose_tasks(["copy"]), 3, seed=0), batch=2)
    assert [len(unit) for unit in units] == [2, 1]
    real, told = running.play, []

    def failing(llm, method, unit, seed):
        if method == "factor":
            raise RuntimeError("no")
        return real(llm, method, unit, seed)

    monkeypatch.setattr(running, "play", failing)
    journal = Journal(tmp_path / "j.jsonl", {})
    failed = run_all(llm, ["threshold", "factor"], units, journal, 0, told.append)
    assert failed == {"factor": "RuntimeError: no"}
    assert {method for method, _ in journal.runs} == {"threshold"}
    assert sum(told) == 4


def test_journals_of_other_runs_and_damaged_ones_are_refused(llm, tmp_path):
    path = tmp_path / "j.jsonl"
    (unit,) = units_of(make_items(llm, choose_tasks(["copy"]), 1, seed=0), batch=1)
    run = play(llm, "threshold", unit)
    Journal(path, {"seed": 0}).keep(run)
    assert Journal(path, {"seed": 0}).runs == {("threshold", run.items): run}
    with pytest.raises(InvalidInput, match="seed 0"):
        Journal(path, {"seed": 1})
    whole = path.read_text()
    path.write_text(whole + '{"method": "thr')
    assert len(Journal(path, {"seed": 0}).runs) == 1
    assert path.read_text() == whole
    for damaged in ("", "[]\n", "nothing\n", whole + "{}\n", whole + "[" * 10**5 + "\n"):
        path.write_text(damaged)
        with pytest.raises(InvalidInput, match="damaged"):
            Journal(path, {"seed": 0})


def test_the_default_methods_cover_what_needs_no_training():
    specs = default_methods(has_blocks=False)
    assert specs[0] == "static"
    assert len(specs) == len(set(specs))
    named = {parse(spec).method.name for spec in specs}
    free = {m.name for m in methods().values() if m.family == "diffusion" and m.training == "none"}
    assert named == free
    assert {cache_of(spec) for spec in specs} == set(CACHES) - {"two_level"}
    assert {cache_of(spec) for spec in default_methods(has_blocks=True)} == set(CACHES)
    for spec in specs:
        assert plain_of(spec) in specs or parse(spec).method.name != "freedave"
        assert without_cache(spec) in specs


def test_names_of_methods():
    assert canonical(["threshold(threshold=0.9)", "threshold", "static(cache=none)"]) == [
        "threshold",
        "static",
    ]
    assert plain_of("freedave(block_length=8,draft_steps=2)") == "static(block_length=8)"
    assert without_cache("static(block_length=8,cache=prefix(refresh=4))") == (
        "static(block_length=8)"
    )
    assert cache_of("static(cache=prefix(refresh=4))") == "prefix"


@pytest.mark.parametrize(
    "plan",
    [
        ParallelPlan(methods=("greedy",)),
        ParallelPlan(methods=("threshold(threshold=nan)",)),
        ParallelPlan(methods=("nobody",)),
        ParallelPlan(tasks=("nothing",)),
        ParallelPlan(batch=0),
        ParallelPlan(batch=10**9),
    ],
)
def test_bad_plans_are_refused_before_a_model_is_loaded(plan):
    with pytest.raises(InvalidInput):
        plan.check()


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_bad_counts_of_instances(llm, count):
    with pytest.raises(InvalidInput, match="instances"):
        make_items(llm, choose_tasks([]), count, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--suite", "none"],
        ["-o", "p.txt"],
        ["-o", "/nowhere/at/all/p.json"],
        ["-m", "/nowhere"],
        ["-m", "smollm2", "-o", "{tmp}/p.json"],
    ],
)
def test_bad_command_lines(arguments, tmp_path):
    given = [text.replace("{tmp}", str(tmp_path)) for text in arguments]
    assert paradecode(*given, "-d", "static", "--instances", "1") == 1
    assert not list(tmp_path.iterdir())


def test_a_bundled_model_that_is_missing_is_explained(monkeypatch):
    from paradecode.models import catalogue

    monkeypatch.setattr(catalogue, "__file__", "/nowhere/catalogue.py")
    with pytest.raises(InvalidModel, match="train diffusion"):
        weights_of("tiny-diffusion")


def test_other_weights_have_another_digest(folder, tmp_path):
    assert digest(folder) == digest(folder)
    (tmp_path / "model.safetensors").write_bytes(b"0" + (folder / "model.safetensors").read_bytes())
    assert digest(tmp_path) != digest(folder)
