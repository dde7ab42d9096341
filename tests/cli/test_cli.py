"""Tests the command line as a program uses it: its JSON, its errors and its exit status."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paradecode.cli import methods
from patience import PATIENCE
from program import paradecode

RUN = [sys.executable, "-c", "from paradecode.cli import main; main()"]


def test_generate_json_contract() -> None:
    asked = ["generate", "Say yes.", "--max-tokens", "6", "--json", "--decoder", "greedy"]
    record = json.loads(paradecode(*asked).stdout)
    assert {
        "text", "token_ids", "finish_reason", "model", "decoder", "backend", "stats",
    } <= record.keys()  # fmt: skip
    assert {
        "forwards", "generated", "drafted", "accepted", "mean_acceptance_length",
        "prefill_seconds", "decode_seconds", "tokens_per_second",
    } <= record["stats"].keys()  # fmt: skip
    assert record["stats"]["generated"] == len(record["token_ids"]) <= 6
    assert (record["decoder"], record["model"]) == ("greedy", "smollm2-135m-instruct")


def test_prompts_file(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "group": "chat", "turns": ["Hello", "And again?"], "max_tokens": 4},
        {"id": "b", "group": "qa", "turns": ["What is 1 + 1?"], "max_tokens": 3},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    run = paradecode("generate", "--prompts", str(path), "--json")
    records = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(r["id"], r["group"], r["turn"]) for r in records] == [
        ("a", "chat", 0), ("a", "chat", 1), ("b", "qa", 0),
    ]  # fmt: skip
    assert [r["stats"]["generated"] for r in records] == [4, 4, 3]


def test_a_search_and_its_cost() -> None:
    asked = ["--search", "best-of(n=3)", "--temperature", "0.8", "--seed", "1", "--max-tokens", "5"]
    record = json.loads(paradecode("generate", "Name a fruit.", *asked, "--json").stdout)
    assert record["search"]["branches"] == 3
    scores = [record["search"]["score"], *(other["score"] for other in record["search"]["others"])]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    said = paradecode("generate", "Name a fruit.", *asked).stdout
    assert said.strip() == record["text"].strip()


def test_rank() -> None:
    asked = ["The capital of France is", "--candidate", " banana", "--candidate", " Paris."]
    ranked = json.loads(paradecode("rank", *asked, "--json").stdout)
    assert [each["candidate"] for each in ranked] == [" Paris.", " banana"]
    assert "Paris" in paradecode("rank", *asked).stdout.splitlines()[3]


def test_methods_json_contract() -> None:
    methods = json.loads(paradecode("methods", "--json").stdout)
    assert {"greedy", "prompt-lookup"} <= {method["name"] for method in methods}
    for method in methods:
        assert {"name", "family", "guarantee", "training", "paper", "arxiv"} <= method.keys()
        assert method["guarantee"] in ("exact", "distribution", "lossy")
        assert method["kind"] == "method"


@pytest.mark.parametrize(("name", "kinds"), [
    ("typical", ["verifier"]), ("specdec++", ["budget"]), ("best-of", ["search"]),
    ("likelihood", ["scorer"]), ("delayed", ["budget", "cache"]), ("full", ["blocks"]),
])  # fmt: skip
def test_parts_have_records_and_a_page(name: str, kinds: list[str]) -> None:
    found = json.loads(paradecode("methods", name, "--json").stdout)
    assert [(part["name"], part["kind"], part["family"]) for part in found if
            part["kind"] != "method"] == [(name, kind, None) for kind in kinds]  # fmt: skip
    assert f"{name} (" in paradecode("methods", name).stdout
    assert name in paradecode("methods").stdout


def test_methods_are_grouped_and_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = paradecode("methods").stdout
    assert listed.startswith("Start here: `prompt-lookup`")
    assert " ..." not in listed
    names = ["works now", "trained head", "draft model", "needs training"]
    heads = [listed.index(f"autoregressive, {part}") for part in ("works", "needs a trained")]
    assert heads[0] < listed.index("\n  suffix ") < heads[1] < listed.index("\n  eagle ")
    assert all(name in listed for name in names)
    monkeypatch.setattr(methods, "columns", lambda: 80)
    every = paradecode("methods", "--all").stdout
    assert "max_ngram=3" in every
    for shown in (paradecode("methods").stdout, every):
        assert max(map(len, shown.splitlines())) <= 80


def test_one_method_or_part() -> None:
    one = paradecode("methods", "pld").stdout
    assert "max_ngram=3: longest suffix that is looked up, 1 to 32" in one
    assert "num_speculative_tokens=8" in one
    assert "When: a good start everywhere" in one
    assert "epsilon=0.09" in paradecode("methods", "typical").stdout
    assert "copyspec" in paradecode("methods", "copispec").stderr


def test_models_json() -> None:
    (default,) = [
        m for m in json.loads(paradecode("models", "--json").stdout)
        if m["name"] == "smollm2-135m-instruct"
    ]  # fmt: skip
    assert default["licence"] == "Apache-2.0"


def test_bad_line_of_a_prompts_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"turns": ["fine"]}\n{"turns": 7}', "utf-8")
    run = paradecode("generate", "--prompts", str(path))
    assert run.returncode == 2
    assert "line 2" in run.stderr


def test_control_c_is_clean() -> None:
    process = subprocess.Popen(
        [*RUN, "generate", "Write a very long story.", "--max-tokens", "4000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    process.stdout.read(1)  # When the first text has arrived, the model is loaded and decoding.
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_an_empty_canvas_says_what_to_try() -> None:
    asked = ("generate", "reverse: Ben Sam Art", "-m", "paradecode/tiny-diffusion")
    empty, short = paradecode(*asked), paradecode(*asked, "--max-tokens", "32")
    assert not empty.stdout.strip()
    assert "try --max-tokens 32" in empty.stderr
    assert (short.stdout.strip(), short.stderr) == ("Art Sam Ben", "")


def test_chat_has_commands_which_the_model_does_not_see() -> None:
    asked = "Hello\n/help\n/what\n/clear\nHello\n/exit\nnever\n"
    run = paradecode("chat", "--max-tokens", "8", "--temperature", "0", stdin=asked)
    assert "/clear  forget the conversation" in run.stdout
    assert "/what is no command:" in run.stdout
    answers = re.findall(r"(\S.*)\n\d+ tokens/s", run.stdout)
    assert len(answers) == 2
    assert len({answer.strip("> ") for answer in answers}) == 1  # The conversation began anew.


def test_chat_holds_a_conversation() -> None:
    run = paradecode("chat", "--max-tokens", "8", "--temperature", "0", stdin="Hello\nAnd you?\n\n")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("tokens/s") == 2
