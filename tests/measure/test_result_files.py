"""Result files are checked field by field, and outputs survive being written and read as JSON."""

import json
from dataclasses import replace

import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.result_files import packed, read_results, unpacked, write_results
from paradecode_lab.measure.results import Counts, Record, Score, trim
from repository import ROOT

COMMITTED = ROOT / "bench" / "results"


@pytest.fixture
def document(make_results, tmp_path):
    """Return the JSON object of a correct file."""
    results = make_results({"a/q": 100.0, "a/q+x": 200.0}, lengths=(5, 9))
    first = results.records[0]
    counts = Counts(3, 40, 2, 6, 3, (2, 1), 1, 2, 1, 0.1, 0.2, 0.3, 0.4, 0.5)
    records = (
        replace(first, batch=4, unit=2, wall_seconds=0.25, right=True, counts=counts),
        *results.records[1:],
    )
    results = replace(results, records=records,
                      scores={(first.item, first.token_ids): Score(1.5, 3, 5)})  # fmt: skip
    write_results(results, tmp_path / "good.json")
    assert read_results(tmp_path / "good.json") == results
    found = json.loads((tmp_path / "good.json").read_text())
    found["records"] = unpacked(found.pop("columns"), found["records"])
    return found


def read(document, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(document))
    return read_results(file)


def test_what_says_nothing_is_left_out(document):
    full, plain = document["records"][:2]
    assert full["counts"]["accepted_per_position"] == [2, 1]
    assert full["right"] is True
    assert not {"batch", "unit", "wall_seconds", "right", "counts"} & plain.keys()
    assert Record("a", "b", 0).counts is None


def test_rows_below_columns_are_the_records(document, tmp_path):
    columns, rows = packed(document["records"])
    assert unpacked(columns, rows) == document["records"]
    assert "counts.accepted_per_position" in columns
    assert read({**document, "columns": columns, "records": rows}, tmp_path).records


@pytest.mark.parametrize("columns", [3, [1], ["engine", "engine"], ["counts", "counts.rows"], []])
def test_columns_that_no_writer_makes_are_refused(document, tmp_path, columns):
    rows = packed(document["records"])[1]
    with pytest.raises(InvalidInput, match=r"columns|records\[0\]"):
        read({**document, "columns": columns, "records": rows}, tmp_path)


def test_the_first_version_is_still_read(document, tmp_path):
    document["schema"] = "paradecode-bench/1"
    for engine in document["engines"]:
        del engine["guarantee"]
    assert len(read(document, tmp_path).records) == 12


@pytest.mark.parametrize("name", ["peers.json", "peers_own_lengths.json", "peers_xeon.json"])
def test_committed_files_are_read(name):
    results = read_results(COMMITTED / name)
    assert results.records
    assert results.scores


def _set(*path):
    """Return a function that sets a field of the document: the keys come first, then the value."""

    def change(document):
        *keys, last, value = path
        for key in keys:
            document = document[key]
        document[last] = value

    return change


@pytest.mark.parametrize(("change", "named"), [
    (_set("schema", "paradecode-bench/9"), "schema"), (_set("records", None), "records"),
    (_set("records", 0, "decode_seconds", -1), r"records\[0\].decode_seconds"),
    (_set("records", 0, "decode_seconds", float("nan")), r"records\[0\].decode_seconds"),
    (_set("records", 0, "decode_seconds", True), r"records\[0\].decode_seconds"),
    (_set("records", 0, "round", 1.5), r"records\[0\].round"),
    (_set("records", 0, "surprise", 1), r"records\[0\].surprise"),
    (_set("records", 0, "engine", "nobody"), "records.*nobody.*engines"),
    (_set("records", 0, "item", "nothing"), "records.*nothing.*items"),
    (_set("records", 0, "output", 10**9), r"records\[0\].output"),
    (_set("records", 0, []), r"records\[0\]"),
    (_set("records", 0, "right", "yes"), r"records\[0\].right"),
    (_set("records", 0, "counts", 3), r"records\[0\].counts"),
    (_set("records", 0, "counts", "forwards", -3), r"records\[0\].counts.forwards"),
    (_set("records", 0, "counts", "accepted_per_position", [1, "x"]), r"per_position\[1\]"),
    (_set("outputs", 0, "token_ids", "abc"), r"outputs\[0\].token_ids"),
    (_set("outputs", 0, "token_ids", [1, None]), r"outputs\[0\].token_ids\[1\]"),
    (_set("outputs", 0, "score", [1.0]), r"outputs\[0\].score"),
    (_set("items", 0, "prompt_tokens", "many"), r"items\[0\].prompt_tokens"),
    (_set("items", 0, {}), r"items\[0\].id.*nothing is given"),
    (_set("engines", 1, "name", "a/q"), "engines.*a/q.*twice"),
    (_set("engines", 0, "versions", []), r"engines\[0\].versions"),
    (_set("machine", "cores", None), "machine.cores"), (_set("machine", 7), "results.machine"),
    (_set("settings", []), "results.settings"), (_set("commit", None), "results.commit"),
])  # fmt: skip
def test_a_wrong_field_is_named(document, tmp_path, change, named):
    change(document)
    with pytest.raises(InvalidInput, match=named):
        read(document, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "[" * 100_000, '"text"', '{"schema":'])
def test_what_is_no_result_is_refused(tmp_path, text):
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match="results"):
        read_results(file)


EOS = (0, 2)


@pytest.mark.parametrize(("tokens", "limit", "stopped", "expected"), [
    ([5, 6, 2], 10, False, (5, 6, 2)),
    ([5, 6, 2, 7, 7, 7], 10, False, (5, 6, 2)),  # A draft's tokens after the end of the text.
    ([5, 6, 7, 8], 3, False, (5, 6, 7)),  # More tokens than the limit.
    ([5, 6], 10, True, (5, 6, 2)),  # The engine left the stop token out.
    ([5, 6, 7], 3, True, (5, 6, 7)),
    ([5, 6], 10, False, (5, 6)),
    ([0], 10, True, (0,)),
    ([], 10, True, (2,)),
    ([], 10, False, ()),
])  # fmt: skip
def test_tokens_after_the_end_do_not_count(tokens, limit, stopped, expected) -> None:
    assert trim(tokens, EOS, limit, stopped) == expected


def test_without_stop_tokens_everything_counts() -> None:
    assert trim([0, 2, 5], (), 10, True) == (0, 2, 5)


def test_json_there_and_back(make_results, tmp_path) -> None:
    results = make_results({"a/q": 100, "a/q+lookup": 130}, noise=0.1)
    key = (results.records[0].item, results.records[0].token_ids)
    results = replace(results, scores={key: Score(3.5, 9, len(key[1]))})
    file = tmp_path / "results.json"
    write_results(results, file, {"note": [1, 2]})
    back = read_results(file)
    assert back.engines == results.engines
    assert back.items == results.items
    assert back.machine == results.machine
    assert back.scores == results.scores
    assert [r.token_ids for r in back.records] == [r.token_ids for r in results.records]
    assert back.records[5].decode_seconds == pytest.approx(
        results.records[5].decode_seconds, abs=1e-6
    )
    data = json.loads(file.read_text())
    assert data["aggregates"] == {"note": [1, 2]}
    assert len(data["outputs"]) == len(results.items)  # Equal outputs are stored once.


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": 1', "{}"])
def test_other_files_are_refused(tmp_path, text) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InvalidInput):
        read_results(file)
    with pytest.raises(InvalidInput):
        read_results(tmp_path / "missing.json")
