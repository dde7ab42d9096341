"""The part of ``docs/benchmarks.md`` on decoders side by side, and its pictures.

python -m paradecode.report.generation_page bench/results/generation.json docs
"""

from __future__ import annotations

import sys
from pathlib import Path

from paradecode.report.bench.charts.all import draw_all
from paradecode.report.bench.load import read_sheet
from paradecode.report.bench.markdown import body
from paradecode.report.bench.palette import looks
from paradecode.report.bench.svg import document
from paradecode.report.marked import insert

PAGE, NAME = "benchmarks.md", "generation"


def files(results: Path, docs: Path) -> dict[str, str]:
    """Path below ``docs`` -> text: the page as it is there with the figures of ``results`` in it,
    and a picture of each chart.

    Raises:
        InvalidInput: for what is no result, or a page without markers.
    """
    sheet = read_sheet(results)
    drawn = draw_all(sheet, looks([sheet]))
    pictures = {f"img/decoders-{name}.svg": drawing for name, drawing in drawn.items()}
    shown = "\n\n".join(f"![{drawing.title}]({path})" for path, drawing in pictures.items())
    page = (docs / PAGE).read_text("utf-8")
    return {
        PAGE: insert(page, NAME, f"\n{body(sheet)}\n\n{shown}\n"),
        **{path: document(drawing) for path, drawing in pictures.items()},
    }


def main() -> None:
    results, docs = map(Path, sys.argv[1:])
    for name, text in files(results, docs).items():
        (docs / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
