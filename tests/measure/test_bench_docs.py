"""The commands of the page on benchmarking work, and name options that exist."""

from __future__ import annotations

import re
import shlex

import pytest
from tiny_llm import write_model, write_prompts
from typer.testing import CliRunner

from paradecode.cli import app
from repository import ROOT

PAGE = (ROOT / "docs" / "bench.md").read_text("utf-8")
pytest.importorskip("torch")
QUICK = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0].strip().splitlines()
SHOWN = re.findall(r"^    (paradecode .*)$", PAGE, re.MULTILINE)


def test_the_quick_commands_in_order(tmp_path, tmp_path_factory, monkeypatch) -> None:
    """With a tiny model and a few prompts in place of the default ones."""
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
    known = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in _commands().items()
    }
    for line in SHOWN:
        _, name, *rest = shlex.split(line.partition("#")[0])
        for word in rest:
            if word.startswith("-"):
                assert word in known[name], line
    assert len(SHOWN) > 4


def _commands():
    from typer.main import get_command

    return get_command(app).commands
