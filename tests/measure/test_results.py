"""The schema: what counts of an output, and JSON there and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.result_files import read_results, write_results
from paradecode_lab.measure.results import Score, trim

EOS = (0, 2)


@pytest.mark.parametrize(
    ("tokens", "limit", "stopped", "expected"),
    [
        ([5, 6, 2], 10, False, (5, 6, 2)),
        ([5, 6, 2, 7, 7, 7], 10, False, (5, 6, 2)),  # A draft's tail behind EOS.
        ([5, 6, 7, 8], 3, False, (5, 6, 7)),  # More than was asked for.
        ([5, 6], 10, True, (5, 6, 2)),  # The engine left the stop token out.
        ([5, 6, 7], 3, True, (5, 6, 7)),
        ([5, 6], 10, False, (5, 6)),
        ([0], 10, True, (0,)),
        ([], 10, True, (2,)),
        ([], 10, False, ()),
    ],
)
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
