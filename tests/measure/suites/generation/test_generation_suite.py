"""Tests the suite ``generation`` on a tiny untrained model, from the command to the files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paradecode.core.decoder import Forward, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY
from paradecode.llm import LLM
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import TABLE, Method, register
from paradecode.methods.specs import parse
from paradecode_lab.measure import cases as running
from paradecode_lab.measure.figures import figures
from paradecode_lab.measure.play import play
from paradecode_lab.measure.prompts import load_prompts
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.suites.generation.suite import (
    GenerationPlan,
    by_turns,
    inputs,
    measure,
    plan_units,
)
from paradecode_lab.measure.turns import Unit
from tiny_llm import write_model, write_prompts

pytest.importorskip("torch")

SPECS = ["-d", "prompt-lookup", "-d", "layer-skip", "-d", "unified-layer-skip"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "autoregressive")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, threads=1, limits=GenerationPlan((), (), batches=(8,)).limits()) as opened:
        yield opened


@pytest.fixture
def registered():
    """Return a function that registers a method for one test: (name, class, guarantee)."""
    added = []

    def add(name, build, guarantee="exact"):
        method = Method(
            name=name, family="autoregressive", guarantee=guarantee, training="none", paper="none",
            arxiv=None, url=None, summary=name, parameters=(), aliases=(), names={}, build=build,
        )  # fmt: skip
        register(method)
        added.append(name)

    parse("greedy")  # This loads the registry before a method is added.
    yield add
    for name in added:
        TABLE["method"].pop(name)


class Slips:
    """Plain decoding with a wrong third token. The test chooses what it promises."""

    def decode(self, seq):
        while not seq.finished:
            reply = yield Forward(seq.pending)
            right = coupled(seq, EMPTY, reply)
            if len(seq.tokens) == seq.prompt_length + 2:
                right = Verdict([(right.tokens[0] + 1) % 90 + 5], right.rows, right.logits)
            seq.commit(right)


class Breaks:
    """A method that raises an error at its first step."""

    def decode(self, seq):
        raise RuntimeError("out of order")
        yield


def paradecode(*arguments: str):
    """Run `paradecode bench` and return the result."""
    from typer.testing import CliRunner

    from paradecode.cli import app

    return CliRunner().invoke(app, ["bench", *arguments])


def test_from_the_command_line_to_the_files(folder, prompts, tmp_path):
    output = tmp_path / "g.json"
    done = paradecode(
        "-m", str(folder), "--prompts", str(prompts), "--threads", "1", *SPECS,
        "--batch", "1,2", "-o", str(output),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert {f.suffix for f in tmp_path.iterdir()} == {".json", ".jsonl", ".md", ".html"}
    results = read_results(output)
    assert results.engines[0].name == "greedy"
    assert len(results.items) == 5  # Four prompts, one of which has two turns.
    assert len(results.records) == 4 * (5 + 4)  # In batches of two, one item is left over.
    found = {each.name: each for each in figures(results)}
    for name in ("greedy", "prompt-lookup", "layer-skip"):
        assert found[name].verdict == "exact"
        assert (found[name].equality.same, found[name].equality.outputs) == (9, 9)
        assert found[name].own_choice.value == 1.0
    lossy = found["unified-layer-skip"]
    assert lossy.verdict == "lossy"
    assert lossy.equality.same < 9
    assert lossy.own_choice.value < 1.0
    assert "lossy" in (tmp_path / "g.md").read_text()
    assert found["prompt-lookup"].accuracy.checked == 1
    assert set(found["prompt-lookup"].sweep) == {1, 2}


def test_every_forward_is_counted(llm, prompts):
    plan = GenerationPlan((), tuple(load_prompts(prompts)))
    items, _, _ = inputs(llm, plan)
    unit, greedy = Unit(0, 0, (items[0],)), SamplingParams(seed=0)
    (plain,) = play(llm, parse("greedy"), unit, greedy, lambda item, text: None)
    (looked,) = play(
        llm, parse("prompt-lookup(budget=fixed)"), unit, greedy, lambda item, text: None
    )
    (skipped,) = play(llm, parse("layer-skip(budget=fixed)"), unit, greedy, lambda item, text: None)
    assert plain.counts.forwards == len(plain.token_ids)
    assert plain.counts.draft_forwards == plain.counts.drafts == 0
    assert looked.token_ids == skipped.token_ids == plain.token_ids
    assert looked.counts.draft_forwards == 0
    assert looked.counts.drafts > 0
    assert skipped.counts.draft_forwards >= skipped.counts.drafts > 0
    for record in (plain, looked, skipped):
        counts = record.counts
        spent = counts.target + counts.draft + counts.verify + counts.sample + counts.other
        assert 0 < counts.target <= spent <= record.wall_seconds
        assert record.wall_seconds >= record.decode_seconds
    # The backend makes several steps of the other two in one call.
    assert skipped.counts.sample > 0
    assert skipped.counts.verify > 0


def test_a_broken_promise_is_reported(folder, prompts, tmp_path, registered):
    registered("slips", Slips)
    output = tmp_path / "g.json"
    done = paradecode("-m", str(folder), "--prompts", str(prompts), "--threads", "1",
                      "-d", "slips", "-o", str(output))  # fmt: skip
    assert done.exit_code == 1
    (slips,) = [each for each in figures(read_results(output)) if each.name == "slips"]
    assert slips.verdict == "broken"
    assert {at for _, _, at in slips.equality.differing} == {2}
    assert "differs from plain: 5 of 5" in (tmp_path / "g.md").read_text()
    assert 'class="badge broken"' in (tmp_path / "g.html").read_text()


def test_a_method_that_fails_disturbs_nobody(folder, prompts, tmp_path, registered):
    registered("breaks", Breaks)
    output = tmp_path / "g.json"
    done = paradecode("-m", str(folder), "--prompts", str(prompts), "--threads", "1",
                      "-d", "breaks", "-d", "suffix", "-o", str(output))  # fmt: skip
    assert done.exit_code == 1
    results = read_results(output)
    assert {e.name: e.status for e in results.engines} == {
        "greedy": "ok", "breaks": "failed", "suffix": "ok",
    }  # fmt: skip
    assert "out of order" in results.engines[1].reason
    assert {r.engine for r in results.records} == {"greedy", "suffix"}


def test_an_interrupted_run_goes_on(folder, prompts, tmp_path, monkeypatch):
    output = tmp_path / "g.json"
    arguments = ["-m", str(folder), "--prompts", str(prompts), "--threads", "1", "-d", "suffix",
                 "--max-tokens", "4", "-o", str(output)]  # fmt: skip
    real, calls = running.play, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(running, "play", interrupted)
    assert paradecode(*arguments).exit_code == 130
    assert not output.exists()
    before = output.with_suffix(".jsonl").read_text().splitlines()
    # Settings and inputs, and five calls, two of which were the warm-up.
    assert len(before) == 2 + 5 - 2
    monkeypatch.setattr(running, "play", real)
    assert paradecode(*arguments).exit_code == 0
    after = output.with_suffix(".jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == 2 + 2 * 5
    monkeypatch.setattr(running, "play", None)  # No call is left to be made.
    assert paradecode(*arguments).exit_code == 0
    refused = paradecode(*arguments, "--temperature", "0.5")
    assert refused.exit_code == 1
    assert "other prompts or settings" in str(refused.exception)


def test_a_one_off_cost_of_plain_decoding_is_paid_before_it_counts(
    llm, prompts, tmp_path, monkeypatch
):
    """The timing of plain decoding starts after its one-off costs.

    The test's clock advances by a millisecond per forward, and by a second at the 64th greedy
    token.
    """
    greedy, real_play, real_complete = [0], running.play, LLM.complete

    def seconds(spec, tokens: int) -> float:
        if str(spec) != "greedy":
            return 0.0
        before, greedy[0] = greedy[0], greedy[0] + tokens
        return float(before < 64 <= greedy[0])

    def complete(self, prompts, params=None, **given):
        made = real_complete(self, prompts, params, **given)
        seconds(given.get("decoder"), sum(len(each.token_ids) for each in made))
        return made

    def timed(llm, spec, unit, *given):
        return [
            replace(r, decode_seconds=1e-3 * (r.counts.forwards - 1)
                    + seconds(spec, len(r.token_ids)))
            for r in real_play(llm, spec, unit, *given)
        ]  # fmt: skip

    plan = GenerationPlan(("suffix",), tuple(load_prompts(prompts)), max_tokens=8)
    inputs(llm, plan)
    monkeypatch.setattr(LLM, "complete", complete)
    monkeypatch.setattr(running, "play", timed)
    found = measure(llm, prompts, plan, tmp_path / "j.jsonl", {}, lambda new, total: None)
    assert max(r.decode_seconds for r in found.records) < 0.1
    assert greedy[0] >= 80


def test_no_decoder_learns_from_another(llm, prompts, tmp_path, monkeypatch):
    salts = {}
    real = running.play

    def watched(llm, spec, unit, sampling, check, salt):
        salts.setdefault((str(spec), unit.batch, unit.round, "warm" in salt), set()).add(salt)
        return real(llm, spec, unit, sampling, check, salt)

    monkeypatch.setattr(running, "play", watched)
    plan = GenerationPlan(
        ("suffix",), tuple(load_prompts(prompts)), max_tokens=2, batches=(1, 2), rounds=2
    )
    measure(llm, prompts, plan, tmp_path / "j.jsonl", {}, lambda new, total: None)
    counted = [salt for (_, _, _, warm), own in salts.items() if not warm for salt in own]
    assert len(counted) == len(set(counted)) == 2 * 2 * 2
    assert all(len(own) == 1 for own in salts.values())


def test_later_turns_continue_plain_decodings_own_answer(llm, prompts):
    items, answers, dropped = inputs(llm, GenerationPlan((), tuple(load_prompts(prompts))))
    assert dropped == 0
    first, second = items[0], items[1]
    assert (first.id, second.id) == ("a-1/1", "a-1/2")
    own = llm.complete([list(first.token_ids)], max_tokens=12, decoder="greedy")[0].text
    said = llm.chat_tokens(
        [
            {"role": "user", "content": load_prompts(prompts)[0].turns[0]},
            {"role": "assistant", "content": own}, {"role": "user", "content": "blue red"},
        ]
    )  # fmt: skip
    assert list(second.token_ids) == said
    assert answers == {"a-2": ("1 2 3",)}


def test_prompts_that_do_not_fit_are_left_out_and_counted(llm, prompts):
    short, *_ = load_prompts(prompts)
    long = replace(short, id="long", turns=("red " * 5000, "and"))
    items, _, dropped = inputs(llm, GenerationPlan((), (long, short)))
    assert dropped == 2
    assert {item.prompt for item in items} == {"a-1"}
    with pytest.raises(InvalidInput, match="context"):
        inputs(llm, GenerationPlan((), (long,)))


def test_batches_mix_the_kinds_of_task(llm, prompts):
    items, _, _ = inputs(llm, GenerationPlan((), tuple(load_prompts(prompts))))
    assert [item.group for item in by_turns(items)] == ["a", "b", "a", "b", "a"]
    units = plan_units(items, GenerationPlan((), (), batches=(2,)))
    assert [len(unit.items) for unit in units] == [2, 2]
    assert all({i.group for i in unit.items} == {"a", "b"} for unit in units)
    with pytest.raises(InvalidInput, match="5 inputs"):
        plan_units(items, GenerationPlan((), (), batches=(6,)))


@pytest.mark.parametrize(("change", "field"), [
    ({"decoders": ("nonsense",)}, "decoder"), ({"max_tokens": 0}, "max_tokens"),
    ({"rounds": 0}, "rounds"), ({"per_group": -1}, "per_group"), ({"batches": (0,)}, "batch"),
    ({"batches": (4, 4)}, "batch"), ({"batches": (10**9,)}, "batch"),
])  # fmt: skip
def test_bad_plans_are_refused_before_a_model_is_loaded(change, field):
    with pytest.raises(InvalidInput, match=field):
        replace(GenerationPlan((), ()), **change).check()


def test_decoders_of_the_other_family_or_without_a_draft_model_are_refused(llm, prompts, tmp_path):
    for spec, fix in (("threshold", "autoregressive"), ("draft-model", "smaller model")):
        plan = GenerationPlan((spec,), tuple(load_prompts(prompts)))
        with pytest.raises(InvalidInput, match=fix):
            measure(llm, prompts, plan, tmp_path / "j.jsonl", {}, lambda new, total: None)


def test_bad_command_lines(tmp_path, prompts):
    for arguments, word in (
        (["--batch", "two"], "batch"), (["--suite", "none"], "suite"),
        (["-o", str(tmp_path / "no" / "g.json")], "output"), (["-o", "g.txt"], "output"),
        (["--suite", "parallel", "--batch", "1,2"], "one size"),
        (["--prompts", str(tmp_path / "none.jsonl")], "cannot be read"),
        (["--temperature", "nan", "--prompts", str(prompts)], "temperature"),
    ):  # fmt: skip
        done = paradecode(*arguments)
        assert done.exit_code == 1
        assert word in str(done.exception)


def test_sampled_runs_are_exact_too(llm, prompts, tmp_path):
    specs = ("prompt-lookup", "prompt-lookup(verifier=nss)")
    asked, sampling = tuple(load_prompts(prompts)), SamplingParams(temperature=1.0, seed=3)
    plan = GenerationPlan(specs, asked, max_tokens=6, sampling=sampling)
    results = measure(llm, prompts, plan, tmp_path / "j.jsonl", {}, lambda new, total: None)
    assert [each.verdict for each in figures(results)] == ["exact", "exact", "law"]
    assert json.dumps(results.settings["temperature"]) == "1.0"
