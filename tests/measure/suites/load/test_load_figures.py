"""Tests percentiles, rates and goodput of known answers, and plans that are refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.machine import describe
from paradecode_lab.measure.report.load import read_sheet
from paradecode_lab.measure.result_files import read_json, read_results
from paradecode_lab.measure.results import EngineInfo, ItemInfo, Record, Results, StreamedAnswer
from paradecode_lab.measure.statistics import Estimate, percentile, rate, speedup
from paradecode_lab.measure.suites.load.asks import arrivals, draw, read_asks
from paradecode_lab.measure.suites.load.plan import Endpoint, LoadPlan, OfferedLoad, read_endpoints
from paradecode_lab.measure.suites.load.report import (
    LATENCY,
    THROUGHPUT,
    document,
    failures,
    latencies,
    write_report,
)
from paradecode_lab.measure.suites.load.summary import is_good, summarise
from paradecode_lab.measure.tables import cells, ends


def test_percentile_intervals_are_ranks() -> None:
    """The median of 100 values has the interval from the 40th to the 61st, as in textbooks."""
    found = percentile(list(range(1, 101)), 0.5)
    assert found == Estimate(50.5, 40.0, 61.0)


def test_few_values_do_not_bound_a_high_percentile() -> None:
    found = percentile([1.0, 2.0, 3.0], 0.99)
    assert (found.low, found.high) == (3.0, None) or found.high is None
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_percentile_intervals_hold_the_truth(share: float) -> None:
    random = np.random.default_rng(5)
    truth, held, trials = -math.log(1 - share), 0, 400
    for _ in range(trials):
        found = percentile(random.exponential(size=300).tolist(), share)
        low = -math.inf if found.low is None else found.low
        high = math.inf if found.high is None else found.high
        held += low <= truth <= high
    assert held / trials > 0.93


def test_rates_and_speedups_over_rounds() -> None:
    alone = rate([100], [2.0])
    assert alone == Estimate(50.0)
    found = rate([100, 110, 120], [2.0, 2.0, 2.0])
    assert found.value == pytest.approx(55.0)
    logs = np.log([50.0, 55.0, 60.0])
    half = 4.303 * logs.std(ddof=1) / math.sqrt(3)
    assert found.high == pytest.approx(55.0 * math.exp(half))
    # A round that is slow for both does not widen the interval of their ratio.
    paired = speedup([100.0, 50.0, 80.0], [50.0, 25.0, 40.0], 2.0)
    assert (paired.low, paired.high) == pytest.approx((2.0, 2.0))
    assert rate([], []) is None


def answer(error: str = "", **changes: Any) -> Record:
    fields = {"load": "c=2", "start": 0.0, "first": 0.1, "last": 1.1, "end": 1.2, "chunks": 5,
              "tokens": 11, "finish_reason": "stop", "client_seconds": 0.1}  # fmt: skip
    return Record("", "a", 0, error=error, streamed=StreamedAnswer(**{**fields, **changes}))


def phase(endpoint: str, *answers: Record, number: int = 0) -> list[Record]:
    """Return the records of a round that takes 2 seconds."""
    seconds = 2.0 / len(answers)
    return [
        replace(each, engine=endpoint, round=number, unit=unit, wall_seconds=seconds)
        for unit, each in enumerate(answers)
    ]


SETTINGS = {"suite": "load", "loads": ["c=2"], "slo_ttft": 0.2, "slo_tpot": 0.15,
            "requests": 1, "rounds": 2, "count": "usage"}  # fmt: skip


def results(*phases: list[Record]) -> Results:
    records = tuple(record for phase in phases for record in phase)
    names = dict.fromkeys(record.engine for record in records)
    engines = tuple(EngineInfo(name, "server", "m", "plain") for name in names)
    items = (ItemInfo("a", "a", "kind", 0, 16),)
    return Results("now", "", "m", describe(), SETTINGS, items, engines, records)


def test_a_summary_counts_the_failed() -> None:
    broken = answer(tokens=7, error="http 503: full")
    one = phase("one", answer(), answer(first=0.3), answer(last=4.1), broken)
    two = phase("two", answer(tokens=44))
    first, second = summarise(results(one, two))
    assert (first.requests, first.errors, first.tokens) == (4, {"http 503": 1}, 33)
    assert first.throughput == Estimate(16.5)
    assert first.goodput == pytest.approx(0.5)  # One of four answers was complete and in time.
    assert first.good.value == 0.25
    assert first.answered == pytest.approx(1.5)
    assert first.per_token["p50"] == percentile([0.08, 0.1, 0.4], 0.5)
    assert first.tokens_per_chunk == pytest.approx(33 / 15)
    assert first.speedup is None
    assert second.speedup == Estimate(pytest.approx(44 / 33))
    assert failures([first, second]) == ["one, c=2: 1 of 4 failed (http 503)"]


@pytest.mark.parametrize(("changes", "good"), [
    ({}, True), ({"first": 0.21}, False), ({"last": 1.7}, False), ({"error": "x"}, False),
    ({"first": None, "last": None, "tokens": 0, "chunks": 0}, False),
    ({"last": 0.1, "chunks": 1}, True),
])  # fmt: skip
def test_objectives(changes: dict[str, Any], good: bool) -> None:
    assert is_good(answer(**changes), SETTINGS) is good


def test_an_endpoint_that_only_fails_has_no_figures() -> None:
    (summary,) = summarise(results(phase("one", answer(error="timeout: 1 s"))))
    assert summary.first == {"p50": None, "p90": None, "p99": None}
    assert summary.throughput == Estimate(0.0)
    assert cells(THROUGHPUT, summary) == ("c=2", "one", "1/1", "0.00", "", "0.00 (0 %)")
    rows = [cells(LATENCY, line) for line in latencies([summary])]
    assert rows[0] == ("c=2", "one", "TTFT, ms", "", "", "")
    assert len(rows) == 3


def test_ends_that_are_not_known() -> None:
    assert ends(Estimate(0.01234, 0.0119, None), 1000) == "12.3 (11.9-?)"
    assert ends(Estimate(123.4)) == "123"
    assert ends(None) == ""


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = results(*(phase(name, answer(), number=n) for n in (0, 1) for name in ("one", "two")))
    summaries = summarise(made)
    files = write_report(made, summaries, tmp_path / "load.json")
    assert [file.name for file in files] == ["load.json", "load.png"]
    assert read_results(files[0]) == made
    read = read_json(files[0])
    assert read == json.loads(json.dumps(document(made, summaries)))
    assert read["aggregates"]["figures"][0]["throughput"]["value"] == 5.5
    assert read["records"][0]["streamed"]["tokens"] == 11
    assert "output" not in read["records"][0]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInput, match="bench load"):
        read_sheet(files[0])


def test_prompts_and_their_order(tmp_path: Path) -> None:
    asks = read_asks(None, 40)
    assert len(asks) > 10
    assert max(ask.max_tokens for ask in asks) == 40
    assert draw(asks, 30, "1/0") == draw(asks, 30, "1/0") != draw(asks, 30, "2/0")
    twice = draw(asks[:4], 8, "1/0")
    assert sorted(ask.id for ask in twice) == sorted([ask.id for ask in asks[:4]] * 2)
    text = tmp_path / "prompts.txt"
    text.write_text("One?\n\n  Two? \n", "utf-8")
    assert [ask.turns for ask in read_asks(text)] == [("One?",), ("Two?",)]
    text.write_text("\n", "utf-8")
    with pytest.raises(InvalidInput, match="at least one prompt"):
        read_asks(text)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_asks(tmp_path / "missing.txt")


def test_arrivals() -> None:
    load = OfferedLoad(rate=50.0)
    assert arrivals(load, "constant", 3, "s") == [0.0, 0.02, 0.04]
    random = arrivals(load, "poisson", 4000, "s")
    gaps = np.diff(random)
    assert random[0] == 0.0
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(0.02, rel=0.1)
    # Exponential gaps have a standard deviation equal to their mean.
    assert gaps.std() == pytest.approx(0.02, rel=0.1)
    assert arrivals(load, "poisson", 10, "s") == random[:10]


def test_endpoints_of_the_command_line() -> None:
    one, two = read_endpoints(
        ["ours=http://127.0.0.1:8000", "peer=https://host/api/v1/"],
        ['{"temperature": 0.7}', 'peer={"cache_prompt": false, "temperature": 0}'], "m",
    )  # fmt: skip
    assert (one.name, one.url, one.model) == ("ours", "http://127.0.0.1:8000/v1", "m")
    assert one.body == {"temperature": 0.7}
    assert two.url == "https://host/api/v1"
    assert two.body == {"temperature": 0, "cache_prompt": False}


@pytest.mark.parametrize(("given", "bodies", "field"), [
    (["http://x"], [], "NAME=URL"), (["a=ftp://x"], [], "URL such as"),
    (["a=http://x?q=1"], [], "URL such as"), (["a=http://x:port"], [], "URL such as"),
    (["a=http://u:p@x"], [], "URL such as"), (["a=http://"], [], "URL such as"),
    (["a=http://[x"], [], "URL such as"), (["a=http://x", "a=http://y"], [], "name of its own"),
    (["a=http://x"], ["{"], "JSON object"), (["a=http://x"], ["[1]"], "name one of a"),
    (["a=http://x"], ['{"stream": false}'], "client's own"),
    (["a=http://x"], ["b={}"], "name one of a"), (["a=http://x"], ["{" * 100000], "JSON"),
])  # fmt: skip
def test_endpoints_that_cannot_be_read(given: list[str], bodies: list[str], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        read_endpoints(given, bodies)


@pytest.mark.parametrize(("changes", "option"), [
    ({"endpoints": ()}, "--endpoint"), ({"loads": ()}, "--concurrency"),
    ({"loads": (OfferedLoad(clients=0),)}, "--concurrency"),
    ({"loads": (OfferedLoad(rate=0.0),)}, "--rate"),
    ({"loads": (OfferedLoad(rate=float("nan")),)}, "--rate"), ({"requests": 0}, "--requests"),
    ({"rounds": 10**9}, "--rounds"), ({"warmup": -1}, "--warmup"),
    ({"timeout": float("nan")}, "--timeout"), ({"slo_ttft": -1.0}, "--slo-ttft"),
    ({"arrivals": "bursty"}, "--arrivals"), ({"api": "responses"}, "--api"),
    ({"count": "chunks"}, "--count"), ({"max_tokens": 0}, "--max-tokens"),
])  # fmt: skip
def test_plans_that_are_refused(changes: dict[str, Any], option: str) -> None:
    fields = {"endpoints": (Endpoint("a", "http://x/v1"),), **changes}
    with pytest.raises(InvalidInput) as refused:
        LoadPlan(**fields).check()
    assert refused.value.field == option
