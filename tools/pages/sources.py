"""Writes into pages which machine, date and commit each result comes from, and its marks.

    python -m tools.pages.sources docs/*.md

A comment in a page names results, and this program writes the lines after it:

    <!-- source: nested.json -->
    <!-- sources -->

The second form is written at the end of a page. It stands for all results that the page names and
that have no line elsewhere. ``bench/marks.json`` has marks that say what is wrong with old results;
a mark is printed wherever its result is quoted.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tools.script import REPOSITORY

RESULTS = REPOSITORY / "bench" / "results"
MARKS = REPOSITORY / "bench" / "marks.json"
SOURCE = re.compile(r"(?m)^<!-- (source: (.+)|sources) -->\n(?:- .*\n)*")
CPU = re.compile(r"\(family (\d+), model (\d+)\)")
"""Finds the family and model numbers after a processor's maker in results.

Pages only have numbers.
"""
NAMED = re.compile(r"`(?:bench/results/)?([\w.]+\.json)`")


@cache
def marks() -> dict[str, list[str]]:
    """Return the name of a result -> what its readers must know."""
    found: dict[str, list[str]] = {}
    for kind in json.loads(MARKS.read_text("utf-8")).values():
        for file in kind["files"]:
            found.setdefault(file, []).append(kind["mark"])
    return found


def line(file: str) -> str:
    """Return a line about a committed result, with its marks."""
    found: Any = json.loads((RESULTS / file).read_text("utf-8"))
    about = found if isinstance(found, dict) else {}
    known = []
    if machine := about.get("machine"):
        cores = machine["cores"]
        cpu = CPU.sub(r"\1/\2", machine["cpu"].replace("(R)", "").replace(" Processor", ""))
        known += [cpu, f"{cores} cores" if cores > 1 else "1 core"]
    if day := about.get("date") or about.get("created"):
        known.append(day[:10])
    if commit := about.get("commit"):
        known.append(commit[:8])
    said = f"`{file}`: {', '.join(known)}." if known else f"`{file}`."
    return " ".join([said, *(f"**{mark}**" for mark in marks().get(file, ()))])


def named(page: str) -> list[str]:
    """Return the results that a page quotes, in their order."""
    found = NAMED.findall(SOURCE.sub("", page))
    return [file for file in dict.fromkeys(found) if (RESULTS / file).is_file()]


def completed(page: str) -> str:
    """Return a page whose lines about results are up to date."""
    own = {file for found in SOURCE.finditer(page) for file in (found[2] or "").split()}
    rest = [file for file in named(page) if file not in own]

    def written(found: re.Match[str]) -> str:
        files = found[2].split() if found[2] else rest
        return f"<!-- {found[1]} -->\n" + "".join(f"- {line(file)}\n" for file in files)

    return SOURCE.sub(written, page)


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        path.write_text(completed(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
