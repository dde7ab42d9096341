"""Tests how a command begins and ends: help, version, errors, and output without a place."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from paradecode import __version__, cli
from paradecode.cli import app
from paradecode.cli.console import print_json
from program import in_process, paradecode

FULL, THREADS = Path("/dev/full"), Path("/proc/self/task")


def test_version() -> None:
    run = paradecode("--version")
    assert (run.returncode, run.stdout) == (0, f"paradecode {__version__}\n")


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "paradecode", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, f"paradecode {__version__}\n")


@pytest.mark.parametrize(("arguments", "heavy"), [
    (["--version"], ["typer", "numpy"]), (["--help"], ["numpy", "paradecode.llm", "rich"]),
    (["methods"], ["gguf", "jinja2", "paradecode.backends", "paradecode.engine.engine", "rich"]),
], ids=lambda value: value[0])  # fmt: skip
def test_what_is_asked_often_imports_little(arguments: list[str], heavy: list[str]) -> None:
    run = started(f"sys.argv[1:] = {arguments}", f"print(set(sys.modules) & {{*{heavy}}})")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("set()\n")


@pytest.mark.skipif(not THREADS.exists(), reason="needs the threads of /proc")
def test_a_list_of_methods_starts_no_threads() -> None:
    run = started("sys.argv[1:] = ['methods']", f"import os; print(os.listdir({str(THREADS)!r}))")
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1].count(",") == 0


def test_control_c_while_the_program_is_imported() -> None:
    run = started("sys.modules['typer'] = Stop('typer')", "raise AssertionError")
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def started(before: str, after: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a new process, with code before and after it."""
    code = f"""
import sys, types
class Stop(types.ModuleType):
    def __getattr__(self, name): raise KeyboardInterrupt
{before}
from paradecode.__main__ import main
try:
    main()
except SystemExit as ended:
    if ended.code: raise
{after}
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_list_of_commands_says_what_each_says_itself() -> None:
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        if (said := command.help) and command.entry.module.startswith("paradecode.cli."):
            assert command.load().help.partition("\n")[0] == said


@pytest.mark.parametrize("command", [(), ("rank",), ("models", "pull"), ("train", "priors")])
def test_every_command_has_a_short_help(command: tuple[str, ...]) -> None:
    run = paradecode(*command, "-h")
    assert run.returncode == 0
    assert "Usage: paradecode" in run.stdout


def test_nothing_to_do_shows_the_help() -> None:
    run = paradecode()
    assert run.returncode == 2
    assert "generate" in run.stdout
    assert run.stderr == ""


@pytest.mark.parametrize(("arguments", "said"), [
    (["gener"], "No such command 'gener'"),
    (["generate", "--nonsense"], "No such option: --nonsense"),
    (["generate", "hi", "--max-tokens", "many"], "'--max-tokens'"),
    (["bench", "load"], "Missing option '--endpoint'"),
])  # fmt: skip
def test_a_word_that_no_command_takes_is_one_line(arguments, said, monkeypatch, capsys):
    status, error = in_process(arguments, monkeypatch, capsys)
    assert status == 2
    assert error.startswith("error: ")
    assert said in error
    assert "--help` says what it takes" in error
    assert error.count("\n") == 1


def test_bars_stand_still_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks set FORCE_COLOR, and show everything that a moving bar writes."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    code = (
        "from paradecode.cli.progress import watched\n"
        "watched('work', lambda tick: [tick(done, 9) for done in range(10)])"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stderr.count("work") == 1
    assert "\x1b" not in run.stderr


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(monkeypatch, capsys):
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        status, error = in_process(["methods"], monkeypatch, capsys)
    assert status == 2
    assert error == "error: standard output: No space left on device\n"


@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_words_that_cannot_be_said_stop_no_command(where: str) -> None:
    code = (
        "import sys; from paradecode.cli.console import err, ignore_lost_words\n"
        "ignore_lost_words()\n"
        "with err.status('loading'): print('a', file=sys.stderr, flush=True)\n"
        "err.print('b'); print('done')"
    )
    command = f'"{sys.executable}" -c "$0" 2{where}'
    run = subprocess.run(["sh", "-c", command, code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "done\n")


def test_a_file_that_cannot_be_written_is_named(monkeypatch, capsys):
    def full(**settings: object) -> int:
        raise OSError(28, "No space left on device", "out.json")

    monkeypatch.setattr(cli, "app", full)
    status, error = in_process([], monkeypatch, capsys)
    assert (status, error) == (2, "error: out.json: No space left on device\n")


def test_control_c_before_a_command_has_begun(monkeypatch, capsys):
    def interrupted(**settings: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    assert in_process([], monkeypatch, capsys) == (130, "")


def test_output_that_says_ascii_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the output takes only ASCII, tables replace other characters, and JSON escapes them."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(sys, "argv", ["paradecode", "methods", "prompt-lookup"])
    monkeypatch.setattr(cli, "app", lambda **settings: print("é"))
    with pytest.raises(SystemExit):
        cli.main()
    print_json({"text": "é"}, line=True)
    assert written.getvalue() == b'?\n{"text": "\\u00e9"}\n'
