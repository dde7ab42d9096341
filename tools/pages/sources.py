"""Where the figures of a page come from: machine, date and commit of each result, and its marks.

    python -m tools.pages.sources docs/*.md

A comment in a page names results, and the lines behind it are written here:

    <!-- source: nested.json -->
    <!-- sources -->

The second form stands at the end of a page, for all results that the page names and that have no
line of their own. ``bench/marks.json`` says what is wrong with results that were not measured
again; a mark is printed wherever the result is.
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
"""How results name a processor beside its maker; a page has the numbers alone."""
NAMED = re.compile(r"`(?:bench/results/)?([\w.]+\.json)`")


@cache
def marks() -> dict[str, list[str]]:
    """Name of a result -> what its readers must know."""
    found: dict[str, list[str]] = {}
    for kind in json.loads(MARKS.read_text("utf-8")).values():
        for file in kind["files"]:
            found.setdefault(file, []).append(kind["mark"])
    return found


def line(file: str) -> str:
    """A sentence about a committed result, and its marks."""
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
    """Results that a page quotes, in their order."""
    found = NAMED.findall(SOURCE.sub("", page))
    return [file for file in dict.fromkeys(found) if (RESULTS / file).is_file()]


def completed(page: str) -> str:
    """A page with its lines as the results and the marks have them."""
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
