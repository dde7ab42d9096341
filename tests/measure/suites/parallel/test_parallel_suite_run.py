"""Tests the suite ``parallel`` on a tiny untrained model, from the command to the files."""

import json
from pathlib import Path

import pytest

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.methods.parts import known
from paradecode.methods.specs import methods, parse
from paradecode_lab.measure.machine import digest, weights_of
from paradecode_lab.measure.play import play
from paradecode_lab.measure.suites.parallel.methods import (
    cache_of,
    canonical,
    default_methods,
    plain_of,
    without_cache,
)
from paradecode_lab.measure.suites.parallel.suite import (
    ParallelPlan,
    batches_by_turns,
    choose_tasks,
    draw_instances,
    make_items,
    measure,
)
from paradecode_lab.measure.suites.parallel.summary import summarise
from paradecode_lab.measure.tasks.task import TaskInstance
from paradecode_lab.measure.tasks.tasks import BY_NAME, GRADED, TASKS
from paradecode_lab.measure.turns import Unit
from tiny_llm import write_model

pytest.importorskip("torch")
SHORT = ["-d", "threshold(threshold=0.01)", "-d", "freedave", "--task", "copy", "--task", "shuffle"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "diffusion")


@pytest.fixture(scope="module")
def autoregressive(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "autoregressive")


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, threads=1) as opened:
        yield opened


def paradecode(*arguments: str) -> int:
    """Run the command, and return its exit status."""
    from typer.testing import CliRunner

    from paradecode.cli import app

    return CliRunner().invoke(app, ["bench", "--suite", "parallel", *arguments]).exit_code


def test_from_the_command_line_to_the_files(folder, tmp_path):
    output = tmp_path / "p.json"
    arguments = ["-m", str(folder), "--threads", "1", *SHORT, "--instances", "3", "-o", str(output)]
    assert paradecode(*arguments) == 0
    data = json.loads(output.read_text())
    assert [each["name"] for each in data["engines"]] == [
        "static", "threshold(threshold=0.01)", "freedave",
    ]  # fmt: skip
    assert len(data["items"]) == 6
    assert len(data["records"]) == 18
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


@pytest.mark.wide
def test_tasks_and_instances_may_be_added(llm, folder, tmp_path):
    """A later run may add tasks and instances, and measures only these.

    It also measures a last batch again that has grown.
    """

    def run(batch: int, instances: int, *tasks: str) -> int:
        """Run the plan, check the result's instances, and count the new generations."""
        fresh: list[int] = []
        results = measure(
            llm, folder, ParallelPlan(("threshold",), tasks, instances, batch),
            tmp_path / f"{batch}.jsonl", {}, lambda new, total: fresh.append(new),
        )  # fmt: skip
        summaries = summarise(results)
        assert [each.method for each in summaries] == ["static", "threshold"]
        for each in summaries:
            assert {name: own.items for name, own in each.tasks.items()} == dict.fromkeys(
                tasks, instances
            )
        return sum(fresh[1:])

    assert run(1, 2, "sort") == 2 * 2
    assert run(1, 2, "copy", "sort") == 2 * 2  # These are of `copy`, which comes first.
    assert run(1, 3, "copy", "sort") == 2 * 2
    assert run(2, 3, "sort") == 2 * 3
    # The third instance was alone in its batch, and is now decoded with the fourth.
    assert run(2, 4, "sort") == 2 * 2
    assert run(2, 4, "copy", "sort") == 2 * 4
    assert run(2, 3, "sort") == 0


def test_an_instance_with_another_canvas_is_measured_again(llm, folder, tmp_path):
    """If a longer answer enlarges the canvas of a task, all its instances are measured again."""

    def run(instances: int) -> dict[str, int]:
        plan = ParallelPlan(("static",), ("word-problem",), instances)
        found = measure(llm, folder, plan, tmp_path / "j", {}, lambda new, total: None)
        return {record.item: record.counts.rows for record in found.records}

    rows, more = run(2), run(8)
    assert {item.max_tokens for item in items_of(llm, ["word-problem"], 2)} == {32}
    assert {item.max_tokens for item in items_of(llm, ["word-problem"], 8)} == {64}
    assert all(more[item] > count for item, count in rows.items())


GREEDY = SamplingParams(seed=0)


def items_of(llm, tasks, count):
    return make_items(llm, draw_instances(choose_tasks(tasks), count, seed=0))


def played(llm, method, items, check=lambda item, text: None):
    return play(llm, parse(method), Unit(0, 0, tuple(items)), GREEDY, check)


def test_answers_and_their_costs(llm):
    items = items_of(llm, ["copy", "addition"], 2)
    assert [item.max_tokens for item in items] == [32, 32, 64, 64]
    assert items == items_of(llm, ["addition", "copy"], 2)
    for item, record in zip(items, played(llm, "static", items[:2])):
        assert record.counts.forwards <= item.max_tokens
        assert record.counts.deciding <= min(record.counts.forwards, len(record.token_ids))
        assert record.counts.rows >= record.counts.forwards * item.max_tokens
    (once,) = played(llm, "static(steps=1)", items[:1])
    assert (once.counts.forwards, once.counts.deciding) == (1, 1)


def test_a_batch_is_what_generate_gives(llm):
    items = items_of(llm, ["copy"], 2)
    given = [list(item.token_ids) for item in items]
    outputs = llm.complete(given, max_tokens=32, seed=0, decoder="threshold")
    records = played(llm, "threshold", items, lambda item, text: False)
    assert [list(record.token_ids) for record in records] == [o.token_ids for o in outputs]
    assert [record.text for record in records] == [output.text for output in outputs]


def test_a_right_answer_is_counted_as_right(llm):
    (item,) = items_of(llm, ["copy"], 1)
    (record,) = played(llm, "static", [item], lambda item, text: False)
    instance = TaskInstance("copy", "copy: x", record.text.strip())
    check = BY_NAME["copy"].check
    assert played(llm, "static", [item], lambda item, text: check(instance, text))[0].right
    assert not record.right


def test_batches_hold_one_task_and_tasks_take_turns(llm):
    units = batches_by_turns(items_of(llm, ["copy", "sort"], 3), 2)
    assert [[item.group for item in unit.items] for unit in units] == [
        ["copy"] * 2, ["sort"] * 2, ["copy"], ["sort"],
    ]  # fmt: skip
    assert [unit.number for unit in units] == [0, 0, 1, 1]


def rules_of(specs):
    return {parse(spec).settings.get("blocks", "fixed") for spec in specs}


def test_the_default_methods_cover_what_needs_no_training():
    specs = default_methods(has_blocks=False)
    assert specs[0] == "static"
    assert len(specs) == len(set(specs))
    named = {parse(spec).method.name for spec in specs}
    free = {m.name for m in methods().values() if m.family == "diffusion" and m.training == "none"}
    assert named == free
    assert {cache_of(spec) for spec in specs} == set(known("cache")) - {"two_level"}
    assert rules_of(specs) == set(known("blocks")) - {"lead"}
    everything = default_methods(has_blocks=True)
    assert {cache_of(spec) for spec in everything} == set(known("cache"))
    assert rules_of(everything) == set(known("blocks"))
    for spec in specs:
        assert plain_of(spec) in specs or parse(spec).method.name != "freedave"
        assert without_cache(spec) in specs


def test_names_of_methods():
    assert canonical(["threshold(threshold=0.9)", "threshold", "static(cache=none)"]) == [
        "threshold", "static",
    ]  # fmt: skip
    assert plain_of("freedave(block_length=8,draft_steps=2)") == "static(block_length=8)"
    assert without_cache("static(block_length=8,cache=prefix(refresh=4))") == (
        "static(block_length=8)"
    )
    assert cache_of("static(cache=prefix(refresh=4))") == "prefix"


@pytest.mark.parametrize("plan", [
    ParallelPlan(methods=("greedy",)), ParallelPlan(methods=("threshold(threshold=nan)",)),
    ParallelPlan(methods=("nobody",)), ParallelPlan(tasks=("nothing",)), ParallelPlan(batch=0),
    ParallelPlan(batch=10**9),
])  # fmt: skip
def test_bad_plans_are_refused_before_a_model_is_loaded(plan):
    with pytest.raises(InvalidInput):
        plan.check()


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_bad_counts_of_instances(count):
    with pytest.raises(InvalidInput, match="instances"):
        draw_instances(choose_tasks([]), count, 0)


@pytest.mark.parametrize("arguments", [
    ["--suite", "none"], ["-o", "p.txt"], ["-o", "/nowhere/at/all/p.json"], ["-m", "/nowhere"],
    ["-m", "{autoregressive}", "-o", "{tmp}/p.json"],
])  # fmt: skip
def test_bad_command_lines(arguments, autoregressive, tmp_path):
    names = {"tmp": tmp_path, "autoregressive": autoregressive}
    given = [text.format(**names) for text in arguments]
    assert paradecode(*given, "-d", "static", "--instances", "1") == 1
    assert not list(tmp_path.iterdir())


def test_a_bundled_model_that_is_missing_is_explained(monkeypatch):
    from paradecode.models import catalogue

    monkeypatch.setattr(catalogue, "DATA", "no_such_package")
    with pytest.raises(InvalidModel, match="install paradecode-data"):
        weights_of("tiny-diffusion")


def test_other_weights_have_another_digest(folder, tmp_path):
    assert digest(folder) == digest(folder)
    (tmp_path / "model.safetensors").write_bytes(b"0" + (folder / "model.safetensors").read_bytes())
    assert digest(tmp_path) != digest(folder)


def test_a_set_of_tasks_has_a_name():
    assert choose_tasks([]) == choose_tasks(["simple"]) == TASKS
    assert choose_tasks(["graded"]) == GRADED
    assert choose_tasks(["graded", "chain", "copy"]) == (BY_NAME["copy"], *GRADED)


@pytest.mark.parametrize(("tasks", "model"), [
    ((), "tiny"), (("nest", "chain"), "graded"), (("nest", "copy"), "tiny"),
])  # fmt: skip
def test_without_a_model_the_one_for_the_tasks_is_measured(tasks, model):
    assert ParallelPlan(tasks=tasks).model == f"paradecode/{model}-diffusion"
