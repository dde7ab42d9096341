"""Every command and program that the README, CONTRIBUTING and the first pages show runs."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.cli.methods import described
from paradecode.methods.parts import TABLE, known
from paradecode.testing.conformance import check as conforms
from paradecode_lab.measure.replay import timing
from program import quick_costs, short_prompts
from repository import ROOT
from tools.pages.cli_page import page as commands_page
from tools.pages.methods_page import committed, method_pages

PAGES = ("README.md", "CONTRIBUTING.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def commands_of(block: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in block.splitlines())
    return [line for line in lines if line]


SHELL = [commands_of(block) for page in PAGES for block in blocks(page, "bash")]
PARADECODE = [[c for c in block if "paradecode" in c] for block in SHELL]


def commands() -> list[str]:
    return [command for block in SHELL for command in block]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {command.split()[1] for command in commands() if command.startswith("make ")}
    assert named
    assert named <= targets


@pytest.mark.first(1)
@pytest.mark.parametrize("block", [b for b in PARADECODE if b], ids=lambda block: block[0][15:45])
def test_commands_of_a_block_in_order(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick_costs(monkeypatch)
    short_prompts(monkeypatch, tmp_path)
    monkeypatch.setattr(timing, "MOST_REQUESTS", 2)
    for command in block:
        program, *arguments = shlex.split(command)
        assert program == ".venv/bin/paradecode"
        run = CliRunner().invoke(app, arguments, prog_name="paradecode", catch_exceptions=False)
        assert run.exit_code == 0, run.output
        assert run.stdout.strip()


def test_no_other_command_is_shown() -> None:
    assert all(command.startswith(("make ", ".venv/bin/paradecode ")) for command in commands())


def test_the_page_of_commands_is_that_of_the_program() -> None:
    """``docs/cli.md`` equals the page that the program generates.

    After a change, run `python -m tools.pages.cli_page docs/cli.md`.
    """
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == commands_page()


def test_extras_are_installed_from_the_checkout() -> None:
    """Pages install from the checkout, as the package index has no package of this name yet."""
    for page in (
        "README.md", "docs/index.md", "docs/serve.md", "docs/answers.md", "docs/benchmarks.md",
        "docs/training.md",
    ):  # fmt: skip
        text = (ROOT / page).read_text("utf-8")
        assert not re.search(r"pip install ['\"]?paradecode", text), page
        assert re.search(r'\.venv/bin/pip install -e "(\.|lab)\[', text), page


def test_readme_program(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks("README.md", "python")
    exec(compile(program, "README.md", "exec"), {})
    assert "forwards for" in capsys.readouterr().out


def test_programs_of_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of ``docs/answers.md`` run, one after the other, as one program."""
    pytest.importorskip("llguidance")
    programs = blocks("docs/answers.md", "python")
    assert len(programs) > 2
    found: dict[str, object] = {}
    for program in programs:
        exec(compile(program, "answers.md", "exec"), found)
    found["llm"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out


@pytest.mark.wide
def test_program_that_adds_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's code passes lint, types and the conformance suite, and needs no other change."""
    drafter, check, budget = blocks("docs/add-a-method.md", "python")
    files = {"copy_bigram.py": drafter, "share_budget.py": budget}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    config = str(ROOT / "pyproject.toml")
    for command in (
        ["ruff", "check", "--config", config, str(tmp_path)],
        ["ruff", "format", "--check", "--config", config, str(tmp_path)],
        ["mypy", "--config-file", config, *(str(tmp_path / name) for name in files)],
    ):
        run = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
    monkeypatch.syspath_prepend(tmp_path)
    for kind in ("method", "drafter", "budget"):
        monkeypatch.setitem(TABLE, kind, dict(known(kind)))
    import_module("copy_bigram")
    import_module("share_budget")
    exec(compile(check, "add-a-method.md", "exec"), {})
    conforms("copy-bigram(budget=share(share=0.3))", kinds=["toy"], only=["batch-of-4"])
    assert "share=0.5" in described(known("budget")["share"])
    # The site has only pages of the package's methods.
    assert "copy-bigram" not in method_pages(*committed())
