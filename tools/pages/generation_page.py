"""The part of ``docs/benchmarks.md`` on decoders side by side, and its pictures.

python -m tools.pages.generation_page bench/results/generation.json docs
"""

from __future__ import annotations

import sys
from pathlib import Path

from paradecode.measure.charts.all import charts_of
from paradecode.measure.charts.looks import looks_of
from paradecode.measure.charts.svg import document
from paradecode.measure.report.load import read_sheet
from paradecode.measure.report.markdown import body
from tools.pages.marked import insert

PAGE, NAME = "benchmarks.md", "generation"


def files(results: Path, docs: Path) -> dict[str, str]:
    """Path below ``docs`` -> text: the page as it is there with the figures of ``results`` in it,
    and a picture of each chart.

    Raises:
        InvalidInput: for what is no result, or a page without markers.
    """
    sheet = read_sheet(results)
    charts = charts_of(sheet, looks_of([sheet]))
    pictures = {f"img/decoders-{name}.svg": chart for name, chart in charts.items()}
    shown = "\n\n".join(f"![{chart.title}]({path})" for path, chart in pictures.items())
    page = (docs / PAGE).read_text("utf-8")
    return {
        PAGE: insert(page, NAME, f"\n{body(sheet)}\n\n{shown}\n"),
        **{path: document(chart) for path, chart in pictures.items()},
    }


def main() -> None:
    results, docs = map(Path, sys.argv[1:])
    for name, text in files(results, docs).items():
        (docs / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
