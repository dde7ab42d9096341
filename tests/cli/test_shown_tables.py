"""Tables of results are readable on a narrow screen and in a pipe, and names are shown whole."""

import io

import pytest
from rich.console import Console

from paradecode.cli import models, tables
from paradecode.cli.tables import print_table
from paradecode.models.catalogue import list_models
from program import paradecode

HEAD = ("method", "tokens/s", "empty", "x plain before")
ROWS = [("prompt-lookup(max_ngram=3)", "629", "", "3.82 (3.59 to 4.08)"), ("greedy", "470", "", "")]


def screen(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(tables, "out", console)
    return file


def test_a_wide_screen_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    file = screen(monkeypatch, 100)
    print_table(HEAD, ROWS)
    (line,) = [line for line in file.getvalue().splitlines() if "prompt-lookup" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "prompt-lookup(max_ngram=3)", "629", "3.82 (3.59 to 4.08)",
    ]  # fmt: skip


def test_a_narrow_screen_gets_a_line_for_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    file = screen(monkeypatch, 40)
    print_table(HEAD, ROWS)
    assert file.getvalue().splitlines() == [
        "prompt-lookup(max_ngram=3)", "  tokens/s        629",
        "  x plain before  3.82 (3.59 to 4.08)", "greedy", "  tokens/s        470",
    ]  # fmt: skip


def test_a_pipe_gets_the_whole_table(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(tables, "out", Console())
    print_table(HEAD, ROWS)
    said = capsys.readouterr().out
    assert "prompt-lookup(max_ngram=3) │      629 │ 3.82 (3.59 to 4.08)" in said
    assert "empty" not in said


def test_names_of_models_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "out", Console(width=80))
    said = paradecode("models").stdout
    assert all(f" {entry.name} " in said for entry in list_models())
