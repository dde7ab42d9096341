"""Runs the command line in this process, which is faster than a new process."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paradecode.backends.interface import Backend
from paradecode.cli import main
from paradecode.engine import cost
from paradecode.engine.cost import CostCurve


def in_process(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Run a command; returns its exit status and its text on stderr. Exceptions are not caught."""
    monkeypatch.setattr(sys, "argv", ["paradecode", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def paradecode(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command, and return what it prints and its exit status."""
    status: object = None
    with (
        pytest.MonkeyPatch.context() as patch,
        CliRunner().isolation(stdin) as (out, error, _),
    ):
        patch.setattr(sys, "argv", ["paradecode", *arguments])
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [stream.getvalue().decode() for stream in (out, error)]
    assert status is None or isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status or 0, *texts)


def quick_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time only a few forwards for a command's cost curve, for tests that need any curve."""
    measure = cost.measure

    def quick(backend: Backend, pages: int, *_: object, **__: object) -> CostCurve:
        return measure(backend, pages, rows=(1, 4, 16), contexts=(64,), repeats=2)

    monkeypatch.setattr(cost, "measure", quick)


def short_prompts(monkeypatch: pytest.MonkeyPatch, folder: Path, characters: int = 120) -> None:
    """Shorten the laboratory's prompts, for tests in which a command only has to run."""
    from paradecode_lab.measure import prompts  # It is not where only the engine is tested.

    lines = [json.loads(line) for line in prompts.DEFAULT_FILE.read_text("utf-8").splitlines()]
    for line in lines:  # Their ends differ, while many begin alike.
        line["turns"] = [turn[-characters:] for turn in line["turns"]]
    file = folder / prompts.DEFAULT_FILE.name
    file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    monkeypatch.setattr(prompts, "DEFAULT_FILE", file)
