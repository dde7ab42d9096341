"""A run as files and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paradecode.measure.suites.load.results import Results, as_json, write_json
from paradecode.measure.suites.load.summary import Summary

BUSY, LATE = 0.25, 0.1
"""Share of a core, and seconds, above which the client disturbs what it measures."""


def document(results: Results, summaries: Sequence[Summary]) -> dict[str, Any]:
    """Machine, settings, figures and every request, for programs."""
    return as_json(results, [{**asdict(s), "load": str(s.load)} for s in summaries])


def write_report(results: Results, summaries: Sequence[Summary], path: Path) -> list[Path]:
    """Write the JSON file and, where matplotlib is there, a picture beside it."""
    write_json(document(results, summaries), path)
    if find_spec("matplotlib") is None:
        return [path]
    from paradecode.measure.suites.load.plots import draw

    return [path, draw(summaries, headline(results), path.with_suffix(".png"))]


def headline(results: Results) -> str:
    """What the figures are about, in one line."""
    settings = results.settings
    models = dict.fromkeys(str(endpoint["model"]) for endpoint in results.endpoints)
    counted = {
        "usage": "tokens as each server counts them",
        "tokenizer": "tokens of one tokenizer for all",
    }[settings["count"]]
    return (
        f"{', '.join(models)}; {settings['requests']} requests x {settings['rounds']} rounds; "
        f"{counted}; {results.machine.cores} cores. Whiskers: 95 % intervals."
    )


def failures(summaries: Sequence[Summary]) -> list[str]:
    """One line for each kind of error of each endpoint."""
    return [
        f"{s.endpoint}, {s.load}: {count} of {s.requests} failed ({kind})"
        for s in summaries
        for kind, count in s.errors.items()
    ]


def warnings(summaries: Sequence[Summary]) -> list[str]:
    """Where the client itself was in the way."""
    said = []
    for s in summaries:
        if s.client > BUSY:
            said.append(f"{s.endpoint}, {s.load}: the client used {100 * s.client:.0f} % of a core")
        if s.late > LATE:
            said.append(f"{s.endpoint}, {s.load}: a request was sent {s.late:.2f} s late")
    return said
