"""``docs/methods.md`` and ``docs/methods/``: every method, and what was measured of it.

python -m tools.pages.methods_page bench/results docs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paradecode.methods.canvas.method import NAMES as CANVAS_NAMES
from paradecode.methods.canvas.method import CanvasSettings as Unmasking
from paradecode.methods.draft.method import DraftSettings as Drafting
from paradecode.methods.parts import Method, parameters_of
from paradecode.methods.registry import methods
from tools.pages.method_page import NOTE, markdown, method_page, paper_link, settings_table

HEAD = f"""{NOTE}
# Methods

`exact` methods emit the tokens of plain decoding, greedy and with a seed at any temperature. What
a draft-and-verify method promises depends on its [verifier](verifiers.md), too. Methods that need
no model of their own can be fused: `prompt-lookup+token-recycling`. For diffusion models `exact`
means the tokens of `static` with the same blocks, and no cache.

`paradecode methods` prints the same list. Each page has the paper, the idea, the settings, and when
the method pays.
"""

FILES = ("methods.json", "methods_pair.json", "methods_pair_24.json")
"""What ``tools.figures.methods`` wrote: of the default model, of a larger one with a draft model,
and of this pair with more methods and fewer prompts."""

PARALLEL = "parallel.json"
"""What ``paradecode bench --suite parallel`` wrote."""


def pages(results: Sequence[Mapping[str, Any]], parallel: Mapping[str, Any]) -> dict[str, str]:
    """Path below ``docs`` -> text.

    Args:
        results: the contents of :data:`FILES`.
        parallel: those of :data:`PARALLEL`.
    """
    known = sorted(methods().values(), key=lambda method: method.name)
    built_in = [m for m in known if m.build.__module__.startswith("paradecode.")]
    each = {f"methods/{m.name}.md": method_page(m, results, parallel) for m in built_in}
    return {"methods.md": _overview(built_in, results), **each}


def _overview(known: Sequence[Method], results: Sequence[Mapping[str, Any]]) -> str:
    drafting = [method for method in known if method.family == "autoregressive"]
    unmasking = [method for method in known if method.family == "diffusion"]
    return "\n".join(
        [
            HEAD,
            "## Draft and verify\n",
            *_list(drafting),
            "\n### Every draft-and-verify method\n",
            "has these settings beside its own; `pearl`, `mirror-sd` and `unified-layer-skip` "
            "have their own loops and only the settings on their pages.\n",
            *settings_table(parameters_of(Drafting), {}),
            "\n## Canvas decoding\n",
            *_list(unmasking),
            "\n### Every canvas method\n",
            "has these settings beside its own ([what they mean](diffusion.md)).\n",
            *settings_table(parameters_of(Unmasking), CANVAS_NAMES),
            "",
            _measured("All methods, one run", results[0]),
            _measured("A larger target, and a draft model", results[1]),
            _measured("The same pair: more methods, fewer prompts", results[2]),
        ]
    )


def _list(known: Sequence[Method]) -> list[str]:
    rows = ["| method | what it does | guarantee | paper |", "|---|---|---|---|"]
    return rows + [
        f"| [`{m.name}`](methods/{m.name}.md) | {markdown(m.summary)} | {m.guarantee} "
        f"| {paper_link(m)} |"
        for m in known
    ]


def _measured(title: str, results: Mapping[str, Any]) -> str:
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
    return head + "\n".join(table) + "\n"


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    *results, parallel = (
        json.loads((source / name).read_text("utf-8")) for name in (*FILES, PARALLEL)
    )
    written = pages(results, parallel)
    (target / "methods").mkdir(exist_ok=True)
    for old in (target / "methods").glob("*.md"):
        if f"methods/{old.name}" not in written:
            old.unlink()
    for name, text in written.items():
        (target / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
