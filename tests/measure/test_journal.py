"""Tests the journal of a run: what it keeps, how it resumes, and what it refuses."""

import json
from dataclasses import replace

import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure import journal as keeping
from paradecode_lab.measure.journal import Journal
from paradecode_lab.measure.machine import Stamp, stamp
from paradecode_lab.measure.results import EngineInfo, ItemInfo, Record


def test_journal_resumes_and_drops_a_torn_line(tmp_path) -> None:
    path, settings = tmp_path / "run" / "raw.jsonl", {"threads": 2, "stop": (0, 2)}
    journal = Journal(path, settings)
    journal.describe(EngineInfo("a", "a", "q", "plain"))
    journal.keep(Record("a", "p0", 0, (5, 6)))
    journal.keep(Record("a", "p1", 0, error="boom"))
    journal.describe(EngineInfo("a", "a", "q", "plain", status="failed", reason="gone"))
    with path.open("a") as file:
        file.write('{"record": {"engine": "a", "it')
    again = Journal(path, settings)
    assert again.done == {("a", 1, 0, "p0")}
    assert again.records[0] == Record("a", "p0", 0, (5, 6))
    assert again.engines["a"].status == "failed"
    again.keep(Record("a", "p1", 0, (5,)))
    assert Journal(path, settings).done == {("a", 1, 0, "p0"), ("a", 1, 0, "p1")}
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_journal_of_another_run_is_refused(tmp_path) -> None:
    path = tmp_path / "raw.jsonl"
    Journal(path, {"threads": 2})
    with pytest.raises(InvalidInput, match=r"other prompts or settings.*\(threads 2\)"):
        Journal(path, {"threads": 1})
    whole = '{"settings": {"threads": 2}}\n'
    for rest in ("rubbish\n", '{"record": {}}\n', "{}\n", "[]\n", "[" * 10**5 + "\n"):
        path.write_text(whole + rest)
        with pytest.raises(InvalidInput, match="damaged"):
            Journal(path, {"threads": 2})
    for text in ("", "[]\n", "nothing\n"):
        path.write_text(text)
        with pytest.raises(InvalidInput, match="damaged"):
            Journal(path, {"threads": 2})


def elsewhere(monkeypatch, created: str = "2030-01-02", **changed) -> None:
    """Let journals be opened on this day, at this commit or on this machine from now on."""
    now = stamp()
    machine = replace(now["machine"], **{k: v for k, v in changed.items() if k != "commit"})
    made = Stamp(created=created, commit=changed.get("commit", now["commit"]), machine=machine)
    monkeypatch.setattr(keeping, "stamp", lambda: made)


def test_what_was_measured_keeps_its_date(tmp_path, monkeypatch):
    elsewhere(monkeypatch, created="2030-01-01", commit="abc")
    Journal(tmp_path / "j", {}).keep(Record("a", "p0", 0, (5,)))
    elsewhere(monkeypatch, created="2030-01-02", commit="abc+", memory_bytes=7)
    again = Journal(tmp_path / "j", {})
    assert again.done == {("a", 1, 0, "p0")}
    assert (again.stamp["created"], again.stamp["commit"]) == ("2030-01-01", "abc+")


@pytest.mark.parametrize("changed", [{"commit": "def"}, {"cores": 128}, {"cpu": "Other CPU"}])
def test_other_code_and_another_machine_begin_anew(tmp_path, monkeypatch, changed):
    elsewhere(monkeypatch, commit="abc")
    Journal(tmp_path / "j", {}).keep(Record("a", "p0", 0, (5,)))
    elsewhere(monkeypatch, **{"commit": "abc", **changed})
    with pytest.raises(InvalidInput, match=next(iter(changed))) as refused:
        Journal(tmp_path / "j", {})
    assert "remove it or name another output" in str(refused.value)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\r", "\n"])
def test_a_text_may_have_any_line_ends(tmp_path, mark):
    record = Record("a", "p0", 0, (5,), right=True, text=f"one{mark}two")
    Journal(tmp_path / "j", {}).keep(record)
    assert Journal(tmp_path / "j", {}).records == [record]


def test_what_was_another_one_is_measured_again(tmp_path):
    def opened(engine: EngineInfo, item: ItemInfo) -> set[tuple[str, int, int, str]]:
        journal = Journal(tmp_path / "j", {})
        journal.expect([engine, plain], [item, long])
        done = journal.done
        for one in (engine, plain):
            for each in (item, long):
                if (one.name, 1, 0, each.id) not in done:
                    journal.keep(Record(one.name, each.id, 0, (5,)))
        return done

    head = EngineInfo("eagle(head='h')", "paradecode", "q", "m", settings={"files": {"h": "aa"}})
    plain, long = EngineInfo("greedy", "paradecode", "q", "plain"), ItemInfo("b", "b", "g", 5, 64)
    short = ItemInfo("a", "a", "g", 5, 32)
    assert opened(head, short) == set()
    assert len(opened(head, short)) == 4
    trained_again = replace(head, settings={"files": {"h": "bb"}})
    assert {name for name, *_ in opened(trained_again, short)} == {"greedy"}
    assert {item for *_, item in opened(trained_again, replace(short, max_tokens=64))} == {"b"}
    assert len(opened(trained_again, replace(short, max_tokens=64))) == 4
