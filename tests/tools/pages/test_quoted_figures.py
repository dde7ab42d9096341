"""Sentences with figures say what the committed results say."""

from __future__ import annotations

import json

from paradecode.methods.parts import known
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.suites.parallel.summary import MethodSummary, summarise
from repository import ROOT

RESULTS = ROOT / "bench" / "results"


def said(page: str) -> str:
    return " ".join((ROOT / page).read_text("utf-8").split())


def summaries(file: str) -> dict[str, MethodSummary]:
    return {each.method: each for each in summarise(read_results(RESULTS / file))}


def right(summary: MethodSummary) -> str:
    return f"{100 * summary.total.exact.value:.0f}"


def times(summary: MethodSummary, blocks: bool = False) -> str:
    versus = summary.blocks if blocks else summary.versus
    assert versus is not None
    assert isinstance(versus.seconds, Interval)
    return f"{versus.seconds.value:.1f}"


def test_canvas_methods_in_the_readme() -> None:
    threshold = summaries("parallel.json")["threshold"]
    page = said("README.md")
    assert f"`threshold` is {times(threshold)} times as fast as `static`" in page
    assert f"and {times(threshold, True)} times as fast as `static(block_length=8)`" in page
    counts = [len(known(kind)) for kind in ("policy", "blocks", "cache")]
    assert "commit policy ({}), a block rule ({}) and a cache ({})".format(*counts) in page


def test_graded_tasks_in_the_readme() -> None:
    """All from one run, but for the trained model, whose run is named."""
    of, page = summaries("graded.json"), said("README.md")
    plain, usual, dual, assd = (
        of[name] for name in ("static", "threshold", "threshold(block_length=8,cache=dual)", "assd")
    )
    assert (
        f"`threshold` keeps {right(usual)} of `static`'s {right(plain)} % at {times(usual)} times "
        f"its speed, `threshold(block_length=8,cache=dual)` has {right(dual)} % at {times(dual)} "
        "times, and `assd`, which verifies drafts of the model by the model, "
        f"{right(assd)} % at {times(assd)} times"
    ) in page
    rows = json.loads((RESULTS / "hybrids_graded.json").read_text("utf-8"))["groups"]["assd"]
    (trained,) = [
        100 * row["right"] / row["outputs"]
        for row in rows
        if row["way"] == "assd" and not row["model"].startswith("paradecode/")
    ]
    assert f"Once trained, `assd` has {trained:.0f} %, in [another run]" in page


def test_never_slower_in_the_faq() -> None:
    files = ("never_slower.json", "never_slower_1.5b.json")
    batches = [
        batch
        for file in files
        for batch in json.loads((RESULTS / file).read_text("utf-8"))["batches"]
    ]
    auto, wrong, again = (
        f"{min(found):.2f} to {max(found):.2f}"
        for found in (
            [batch[f"{name}_over_plain"] for batch in batches]
            for name in ("auto", "hopeless", "plain")
        )
    )
    assert (
        f"`auto` had {auto} times the speed of plain decoding, a drafter that is always wrong "
        f"{wrong}, and plain decoding measured a second time {again} "
    ) in said("docs/faq.md")
