"""Makes the pages of the methods when the site is built (by `make docs` and ``hook.py``).

``docs/methods.md`` is written by hand; lists, settings and measurements replace its marks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from paradecode.methods.canvas.loop import NAMES as CANVAS_NAMES
from paradecode.methods.canvas.loop import CanvasSettings as Unmasking
from paradecode.methods.draft.loop import DraftSettings as Drafting
from paradecode.methods.parts import Method, parameters_of
from paradecode.methods.specs import methods
from tools.pages.method_page import (
    PARALLEL,
    markdown,
    method_page,
    paper_link,
    settings_table,
)
from tools.pages.sources import line

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"

FILES = ("methods.json", "methods_pair.json", "methods_pair_24.json")
"""Results of ``tools.figures.methods`` that the pages quote.

The first is measured with the default model, the second with a larger model and a draft model. The
third has these two models as well, with more methods and fewer prompts.
"""

TITLES = (
    "All methods, one run",
    "A larger target, and a draft model",
    "The same pair: more methods, fewer prompts",
)


@cache
def committed() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the results that the pages quote: :data:`FILES` by name, and :data:`PARALLEL`."""
    found = {name: json.loads((RESULTS / name).read_text("utf-8")) for name in (*FILES, PARALLEL)}
    parallel = found.pop(PARALLEL)
    return found, parallel


def method_pages(
    results: Mapping[str, Mapping[str, Any]], parallel: Mapping[str, Any]
) -> dict[str, str]:
    """Return the name and the page of each method that comes with the package."""
    return {method.name: method_page(method, results, parallel) for method in built_in()}


def built_in() -> list[Method]:
    """Return the methods that come with the package, by name."""
    known = sorted(methods().values(), key=lambda method: method.name)
    return [method for method in known if method.build.__module__.startswith("paradecode.")]


def overview(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return for each mark in ``docs/methods.md`` the text that replaces it."""
    known = built_in()
    return {
        "drafting": "\n".join(_list([m for m in known if m.family == "autoregressive"])),
        "unmasking": "\n".join(_list([m for m in known if m.family == "diffusion"])),
        "drafting settings": "\n".join(settings_table(parameters_of(Drafting), {})),
        "unmasking settings": "\n".join(settings_table(parameters_of(Unmasking), CANVAS_NAMES)),
        "measured": "\n".join(map(_measured, TITLES, results, results.values())),
    }


def _list(known: Sequence[Method]) -> list[str]:
    rows = ["| method | what it does | guarantee | paper |", "|---|---|---|---|"]
    return rows + [
        f"| [`{m.name}`](methods/{m.name}.md) | {markdown(m.summary)} | {m.guarantee} "
        f"| {paper_link(m)} |"
        for m in known
    ]


def _measured(title: str, file: str, results: Mapping[str, Any]) -> str:
    machine, rows = results["machine"], results["methods"]
    groups = list(rows[0]["groups"])
    draft = f", draft model {results['draft_model']}" if results.get("draft_model") else ""
    head = (
        f"## {title}\n\n{results['model']}{draft} on the {results['backend']} backend, "
        f"{machine['cpu']}, {machine['cores']} cores, {results['date']}; "
        f"{rows[0]['prompts']} prompts, at most {results['max_tokens']} tokens. "
        "Speed over plain decoding, token-weighted, with 95 % intervals, then by task group; "
        "`replay` is what `paradecode replay` predicts, `share` the method's own time. A method "
        "pays where `tokens`, the output tokens of a target forward, is more than `step`, the "
        "time of a step over that of a plain one.\n\n"
    )
    table = [
        "| method | tokens/s | over plain | replay | tokens | step | length | share | equal | "
        + " | ".join(groups)
        + " |",
        "|---" * (9 + len(groups)) + "|",
    ]
    for row in rows:
        overall, tokens = row["speed_up"], 1 / row["forwards_per_token"]
        cells = [
            f"`{row['method']}`",
            f"{row['tokens_per_second']:.0f}"
            if rows[0]["tokens_per_second"] > 100
            else f"{row['tokens_per_second']:.1f}",
            f"**{overall['value']:.2f}** ({overall['low']:.2f}–{overall['high']:.2f})",
            f"{row['predicted']['speed_up']:.2f}" if "predicted" in row else "",
            f"{tokens:.2f}",
            f"{tokens / overall['value']:.2f}",
            f"{row['mean_acceptance_length']:.2f}",
            f"{100 * row['decoder_share']:.0f} %",
            f"{row['equal_to_plain']}/{row['prompts']}",
            *(f"{row['groups'][group]['value']:.2f}" for group in groups),
        ]
        table.append("| " + " | ".join(cells) + " |")
    return head + "\n".join([*table, "", line(file)]) + "\n"
