"""The commands on the page about measuring run, and every option on it exists."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.cli.later import LaterCommand
from repository import ROOT
from tiny_llm import write_model, write_prompts

PAGE = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
pytest.importorskip("torch")
QUICK = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0].strip().splitlines()
SHOWN = re.findall(r"^    (paradecode .*)$", PAGE, re.MULTILINE)


@pytest.mark.wide
def test_the_quick_commands_in_order(tmp_path, tmp_path_factory, monkeypatch) -> None:
    """The quick commands run in their order, here with a tiny model and a few prompts."""
    elsewhere = tmp_path_factory.mktemp("model")
    model = write_model(elsewhere, "autoregressive")
    prompts = write_prompts(elsewhere / "prompts.jsonl")
    monkeypatch.chdir(tmp_path)
    for command in QUICK:
        program, *arguments = shlex.split(command)
        assert program == ".venv/bin/paradecode"
        if arguments[0] == "bench" and arguments[1].startswith("-"):
            arguments += ["-m", str(model), "--prompts", str(prompts), "--threads", "1"]
        run = CliRunner().invoke(app, arguments)
        assert run.exit_code == 0, run.output
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"quick.json", "quick.jsonl", "quick.md", "quick.html"}


def test_every_option_that_is_shown_exists() -> None:
    known = options_of(get_command(app).commands)
    for line in SHOWN:
        _, name, *rest = shlex.split(line.partition("#")[0])
        if rest and rest[0] in ("compare", "load"):
            name, rest = f"{name} {rest[0]}", rest[1:]
        for word in rest:
            if word.startswith("-"):
                assert word in known[name], line
    assert {line.split()[1] for line in SHOWN} == {"bench", "report"}
    assert sum(" bench load " in line for line in SHOWN) > 2


def options_of(commands: dict[str, Any], above: str = "") -> dict[str, set[str]]:
    """Return the options of each command and of each command below it."""
    known: dict[str, set[str]] = {}
    for name, named in commands.items():
        command = named.load() if isinstance(named, LaterCommand) else named
        known[above + name] = {option for entry in command.params for option in entry.opts}
        known |= options_of(getattr(command, "commands", {}), f"{above}{name} ")
    return known
