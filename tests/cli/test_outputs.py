"""A command that cannot write its file says so before it loads a model."""

import json
from pathlib import Path

import pytest

from paradecode.cli.options import Loading
from paradecode.cli.outputs import writable
from paradecode.core.errors import InvalidInput
from program import in_process
from repository import ROOT

RESULT = str(ROOT / "bench" / "results" / "methods.json")


def test_files_that_can_be_written(tmp_path: Path) -> None:
    here = tmp_path / "here.json"
    here.write_text("old", "utf-8")
    writable("output", here, ".json")
    writable("output", tmp_path / "new.json", ".json")
    assert [file.name for file in tmp_path.iterdir()] == ["here.json"]
    assert here.read_text("utf-8") == "old"


@pytest.mark.parametrize(("path", "fix"), [
    (".", "in a folder that is there"), ("no/such/folder/x.json", "in a folder that is there"),
    ("x.txt", "name a .json file"), (f"{'x' * 300}.json", "that can be written"),
    ("/proc/x.json", "that can be written"),
])  # fmt: skip
def test_what_cannot_be_written(path: str, fix: str) -> None:
    if path.startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("needs /proc")
    with pytest.raises(InvalidInput, match=fix) as error:
        writable("--output", Path(path), "" if path == "." else ".json")
    assert error.value.field == "--output"


@pytest.mark.parametrize("command", [
    ["tune", "no/folder/x.json"], ["replay", "record", "no/folder/x.replay"],
    ["datastore", "no/folder/c.store", __file__], ["bench", "-o", "no/folder/x.json"],
    ["bench", "load", "-e", "a=http://127.0.0.1:1", "-o", "no/folder/x.json"],
    ["report", RESULT, "-o", "no/folder/x.html"], ["trace", "hi", "-o", "no/folder/x.html"],
    ["generate", "hi", "--trace", "no/folder/x.html"],
], ids=lambda command: " ".join(command[:2]))  # fmt: skip
def test_every_command_looks_first(command, tmp_path, monkeypatch, capsys):
    never_loaded(monkeypatch)
    monkeypatch.chdir(tmp_path)
    status, error = in_process(command, monkeypatch, capsys)
    assert status == 2
    assert "no/folder" in error
    assert "in a folder that" in error


def test_tune_counts_the_prompts_and_looks_for_files_first(tmp_path, monkeypatch, capsys):
    never_loaded(monkeypatch)
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"id": "a", "group": "g", "turns": ["Hello"]}), "utf-8")
    given = ["tune", str(tmp_path / "p.json")]
    status, error = in_process([*given, "--workload", str(few)], monkeypatch, capsys)
    assert (status, "give at least 6 prompts" in error) == (2, True)
    for name in ("--head", "--table"):
        status, error = in_process([*given, name, "no-such-file"], monkeypatch, capsys)
        assert (status, f"{name}: " in error) == (2, True)


def test_record_counts_what_it_keeps_first(tmp_path, monkeypatch, capsys):
    never_loaded(monkeypatch)
    given = ["replay", "record", str(tmp_path / "a.replay"), "--top", "0"]
    status, error = in_process(given, monkeypatch, capsys)
    assert (status, "--top: 0 " in error) == (2, True)


def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **settings: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Loading, "open", refused)
    monkeypatch.setattr("paradecode.models.catalogue.open_model", refused)
