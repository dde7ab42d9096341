"""Prompts from arguments and standard input, files of conversations, and options that conflict."""

import io
import json
import sys
from pathlib import Path

import pytest

from paradecode.cli.conversations import read_conversations
from paradecode.cli.prompt import read_prompt
from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from program import in_process, paradecode


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from there"))
    assert read_prompt("PROMPT", "-") == "from there"
    assert read_prompt("PROMPT", "from here") == "from here"


def test_standard_input_that_gives_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidInput, match="closed"):
        read_prompt("PROMPT", "-")
    # Python opens it in one of these ways, depending on the locale.
    for errors in ("strict", "surrogateescape"):
        wrong = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8", errors)
        monkeypatch.setattr(sys, "stdin", wrong)
        with pytest.raises(InvalidInput, match="UTF-8"):
            read_prompt("PROMPT", "-")
    with pytest.raises(InvalidInput, match="UTF-8"):
        read_prompt("PROMPT", "\udcff")


@pytest.mark.parametrize(
    "command", [["generate", "-"], ["trace", "-"], ["rank", "-", "--candidate", "a"], ["chat"]]
)
def test_every_command_says_that_standard_input_is_closed(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    status, error = in_process(command, monkeypatch, capsys)
    assert status == 2
    assert "standard input" in error
    assert "closed" in error


def test_trace_and_rank_read_standard_input() -> None:
    record = json.loads(paradecode("trace", "-", "--json", "-n", "2", stdin="Say blue.").stdout)
    assert "Say blue." in record["prompt"]
    candidates = "--candidate", " Paris", "--candidate", " banana", "--json"
    text = "The capital of France is"
    assert json.loads(paradecode("rank", "-", *candidates, stdin=text).stdout) == json.loads(
        paradecode("rank", text, *candidates).stdout
    )


@pytest.mark.parametrize(("line", "named"), [
    ("", "--prompts"), ("{", "p.jsonl line 1"), ('{"turns": []}', "p.jsonl line 1"),
    ('{"turns": "a"}', "p.jsonl line 1 turns"), ('{"turns": [1]}', "p.jsonl line 1 turns"),
    ('{"turns": ["a"], "max_tokens": 0}', "p.jsonl line 1 max_tokens"),
    ('{"turns": ["a"], "max_tokens": "b"}', "p.jsonl line 1 max_tokens"),
])  # fmt: skip
def test_a_file_of_prompts_that_is_wrong(line: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(line, "utf-8")
    with pytest.raises(InvalidInput) as error:
        read_conversations(file)
    assert error.value.field.startswith(named)


def test_a_turn_that_fails_is_a_line_and_an_exit_status(tmp_path, monkeypatch):
    usual = LLM.chat

    def chat(llm: LLM, messages: list[dict[str, str]], **settings: object) -> object:
        if messages[-1]["content"] == "fail":
            raise InvalidInput("messages", "fail", "ask something else")
        return usual(llm, messages, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(LLM, "chat", chat)
    file = tmp_path / "p.jsonl"
    lines = [{"id": "a", "turns": ["fail", "never tried"]}, {"id": "b", "turns": ["Hello"]}]
    file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    run = paradecode("generate", "--prompts", str(file), "--max-tokens", "2")
    assert run.returncode == 1
    failed, answered = map(json.loads, run.stdout.splitlines())
    assert (failed["id"], failed["turn"], "ask something else" in failed["error"]) == ("a", 0, True)
    assert (answered["id"], "error" in answered) == ("b", False)
    file.write_text(json.dumps(lines[1]), "utf-8")
    assert paradecode("generate", "--prompts", str(file), "--max-tokens", "2").returncode == 0


@pytest.mark.parametrize(("arguments", "named"), [
    (["generate", "--prompts", "FILE", "--show-forwards"], "--show-forwards"),
    (["generate", "--prompts", "FILE", "--raw"], "--raw"),
    (["generate", "--prompts", "FILE", "--trace", "t.html"], "--trace"),
    (["generate", "--prompts", "FILE", "--search", "best-of(n=2)"], "--search"),
    (["generate", "hi", "--show-forwards", "--json"], "--show-forwards"),
    (["generate", "hi", "--draft-model", "X"], "--draft-model"),
    (["trace", "hi", "--draft-model", "X", "-d", "suffix"], "--draft-model"),
    (["chat", "--draft-model", "X"], "--draft-model"),
    (["verify", "--draft-model", "X"], "--draft-model"),
    (["bench", "--suite", "parallel", "--prompts", "FILE"], "--prompts"),
    (["bench", "--suite", "parallel", "--rounds", "3"], "--rounds"),
    (["bench", "--suite", "parallel", "--max-tokens", "2"], "--max-tokens"),
    (["bench", "--task", "graded"], "--task"), (["bench", "--instances", "3"], "--instances"),
    (["rank", "a", "--candidate", " b", "--candidate", ""], "--candidate"),
    (["generate", "hi", "--choice", "yes", "--regex", "a"], "constraint"),
    (["verify", "--decoder", "threshold"], "--decoder"),
], ids=lambda given: " ".join(given[:3]) if isinstance(given, list) else "")  # fmt: skip
def test_what_a_command_would_not_use_is_refused(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text('{"turns": ["Hello"]}', "utf-8")
    status, error = in_process(arguments, monkeypatch, capsys)
    assert status == 2
    assert error.startswith(f"error: {named}: ")
    assert [file.name for file in tmp_path.iterdir()] == ["FILE"]


@pytest.mark.parametrize("command", [["verify"], ["tune", "p.json"], ["replay", "record", "a"]])
def test_a_diffusion_model_is_sent_to_the_command_that_takes_it(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [*command, "-m", "paradecode/tiny-diffusion"]
    status, error = in_process(given, monkeypatch, capsys)
    assert status == 2
    assert error.startswith("error: --model: 'paradecode/tiny-diffusion'")
    assert "bench --suite parallel" in error
