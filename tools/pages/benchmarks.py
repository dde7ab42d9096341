"""Writes tables and pictures of stored results: as files, or into a page.

python -m tools.pages.benchmarks bench/results/peers.json --baseline llama-cpp/q4_1 \\
    --into docs/benchmarks.md
python -m tools.pages.benchmarks bench/results/generation.json --into docs/benchmarks.md \\
    --name generation --pictures img/decoders
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import replace
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.charts.all import charts_of
from paradecode_lab.measure.charts.chart import looks_of
from paradecode_lab.measure.charts.svg import document
from paradecode_lab.measure.report.load import read_sheet
from paradecode_lab.measure.report.markdown import summary
from paradecode_lab.measure.report.write import write_run
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.sheet import Sheet
from tools.pages.marked import put

SHOWN = ("Model", "Inputs", "Version")
"""Conditions that a page shows above the table; the lines of sources below it name the machine."""
LEFT_OUT = ("first difference", "prompt tokens/s", "peak MB", "load s")
"""Columns that the tables of a page leave out."""


def pictures_of(sheet: Sheet, stem: str) -> dict[str, tuple[str, str]]:
    """Return the path of each chart -> its title and its SVG."""
    charts = charts_of(sheet, looks_of([sheet]))
    return {f"{stem}-{name}.svg": (chart.title, document(chart)) for name, chart in charts.items()}


def text_of(sheet: Sheet, pictures: dict[str, tuple[str, str]]) -> str:
    """Return the table, and links to the pictures.

    The page itself explains the columns, and says when and where they were measured.
    """
    used = [n for n, head in enumerate(sheet.head) if head not in LEFT_OUT]
    sheet = replace(
        sheet,
        conditions=tuple(each for each in sheet.conditions if each[0] in SHOWN),
        head=tuple(sheet.head[n] for n in used),
        lines=tuple(
            replace(line, cells=tuple(line.cells[n] for n in used)) for line in sheet.lines
        ),
    )
    links = [f"![{title}]({path})" for path, (title, _) in pictures.items()]
    return "\n\n".join([*summary(sheet), *links])


def main() -> int:
    """Run the program, and return its exit status."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON file of a run")
    parser.add_argument("--baseline", help="engine that speed-ups refer to")
    parser.add_argument("--folder", type=Path, help="write all files there")
    parser.add_argument("--into", type=Path, help="put the tables between the document's markers")
    parser.add_argument("--name", default="bench", help="of the markers")
    parser.add_argument("--pictures", help="path of pictures from the document, without their ends")
    given = parser.parse_args()
    try:
        if given.folder:
            results = read_results(given.results)
            print(*write_run(results, given.folder, given.baseline), sep="\n")
            return 0
        sheet = read_sheet(given.results, given.baseline)
        pictures = pictures_of(sheet, given.pictures) if given.pictures else {}
        if not given.into:
            print(text_of(sheet, pictures))
            return 0
        put(given.into, given.name, f"\n{text_of(sheet, pictures)}\n")
        for path, (_, svg) in pictures.items():
            (given.into.parent / path).write_text(svg, "utf-8")
    except InvalidInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
