"""More than forty mistakes of users give helpful messages. They are listed in ``mistakes.txt``.

A stanza of this file is a command line after ``$``, or a call after ``>>>``, and its message.
"""

import shlex
from pathlib import Path

import pytest

import paradecode as package
from paradecode import LLM, ParadecodeError
from program import paradecode

STANZAS = Path(__file__).with_name("mistakes.txt").read_text("utf-8").strip().split("\n\n")
MISTAKES = [tuple(stanza.split("\n", 1)) for stanza in STANZAS]
COMMANDS = [(asked[2:], said) for asked, said in MISTAKES if asked.startswith("$ ")]
CALLS = [(asked[4:], said) for asked, said in MISTAKES if asked.startswith(">>> ")]
UNHELPFUL = ("None", "''", "[Errno", "[]", "Input should", "Traceback")
"""Words of Python, its libraries or validators, which tell a user nothing."""


def test_there_are_forty_and_every_message_is_in_words() -> None:
    assert len(COMMANDS) + len(CALLS) == len(MISTAKES) >= 40
    assert len({asked for asked, _ in MISTAKES}) == len(MISTAKES)
    assert not [said for _, said in MISTAKES if any(word in said for word in UNHELPFUL)]
    assert all(len(said.splitlines()) == 1 for _, said in MISTAKES)


@pytest.mark.parametrize(("command", "said"), COMMANDS, ids=[asked for asked, _ in COMMANDS])
def test_a_command(command, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("This is no model.\n")
    Path("empty").mkdir()
    program, *arguments = shlex.split(command)
    run = paradecode(*arguments)
    assert (program, run.returncode) == ("paradecode", 2)
    assert run.stderr.strip() == f"error: {said}"


@pytest.mark.parametrize(("call", "said"), CALLS, ids=[asked for asked, _ in CALLS])
def test_a_call(llm: LLM, call: str, said: str) -> None:
    with pytest.raises(ParadecodeError) as caught:
        eval(call, {"llm": llm, "LLM": LLM, "paradecode": package})
    assert str(caught.value) == said
