"""Writes the page of one method, from the registry and the method's own docstring."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paradecode.methods.canvas.loop import NAMES as CANVAS_NAMES
from paradecode.methods.canvas.loop import CanvasSettings as Unmasking
from paradecode.methods.draft.loop import DraftSettings as Drafting
from paradecode.methods.parts import Method, Parameter, parameters_of
from tools.pages.sources import line

FAMILIES = {
    "autoregressive": ("every-draft-and-verify-method", parameters_of(Drafting)),
    "diffusion": ("every-canvas-method", parameters_of(Unmasking)),
}
"""Family -> the anchor of its loop's settings in ``methods.md``, and these settings."""

PARALLEL = "parallel.json"
"""Name of the result of ``paradecode bench --suite parallel``."""

MANY = 12
"""A table does not list the values of a setting that has more than this many."""


def method_page(
    method: Method, results: Mapping[str, Mapping[str, Any]], parallel: Mapping[str, Any]
) -> str:
    """Return the page of a method.

    Args:
        results: file -> result of ``tools/figures/methods.py``; it is quoted if it has the method.
        parallel: the content of :data:`PARALLEL`.
    """
    parts = [
        f"# `{method.name}`\n",
        markdown(method.summary),
        "\n| | |\n|---|---|",
        *(f"| {name} | {text} |" for name, text in _facts(method)),
        "",
    ]
    if method.idea:
        parts += ["## Idea\n", markdown(method.idea), ""]
    if method.when:
        parts += ["## When to use it\n", markdown(method.when[:1].upper() + method.when[1:]), ""]
    parts += ["## Settings\n", *_settings(method), "", "## Measured\n"]
    canvas = method.family == "diffusion"
    parts += _on_tasks(method, parallel) if canvas else _on_prompts(method, results)
    return "\n".join(parts) + "\n"


def markdown(docstring: str) -> str:
    """Turn a docstring into Markdown.

    Each paragraph becomes one line; code gets single backticks, and references become names.
    """
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", docstring).replace("``", "`")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def settings_table(parameters: Sequence[Parameter], names: Mapping[str, str]) -> list[str]:
    """Return Markdown rows: setting, default, possible values, meaning, and other engines' names.

    Args:
        names: other engines' name of a setting -> our name.
    """
    rows = ["| setting | default | values | meaning | also called |", "|---" * 5 + "|"]
    for each in parameters:
        also = ", ".join(f"`{theirs}`" for theirs, ours in names.items() if ours == each.name)
        default = repr(each.default) if each.default == "" else each.default
        rows.append(f"| `{each.name}` | `{default}` | {_values(each)} | {each.help} | {also} |")
    return rows


def paper_link(method: Method) -> str:
    link = f"https://arxiv.org/abs/{method.arxiv}" if method.arxiv else method.url
    return f"[{method.paper}]({link})" if link else method.paper


def _facts(method: Method) -> list[tuple[str, str]]:
    shown = ".".join(method.build.__module__.split(".")[1:]).replace(".", "/") + ".py"
    source = Path(sys.modules[method.build.__module__].__file__ or "")
    assert source.as_posix().endswith(f"paradecode/{shown}"), f"{method.name} lies at {source}"
    facts = [
        ("paper", paper_link(method)),
        ("family", method.family),
        ("guarantee", f"`{method.guarantee}`{_condition(method)}"),
        ("to train", "nothing" if method.training == "none" else f"`{method.training}`"),
    ]
    if method.models:
        facts.append(("second model", f"{', '.join(method.models)} (`--draft-model`)"))
    if method.aliases:
        facts.append(("also called", ", ".join(f"`{alias}`" for alias in method.aliases)))
    return [*facts, ("code", f"`src/paradecode/{shown}`")]


def _condition(method: Method) -> str:
    if method.under is None or method.guarantee != "exact":
        return ""
    if method.family == "diffusion":
        others = [entry.name for entry in method.parameters if entry.name == "base"]
        left = " or ".join(f"`{name}`" for name in ("cache", "steps", *others))
        return f": the tokens of `static` with the same blocks, unless {left} is set"
    return " with the default [verifier](../methods.md#acceptance-rules); others may promise less"


def _values(each: Parameter) -> str:
    if each.local:
        return "a file"
    if len(each.options) > MANY:
        return "[a policy](../methods.md#canvas-decoding)"
    if each.options:
        return ", ".join(f"`{option}`" for option in each.options)
    if each.low is not None and each.high is not None:
        return f"{each.low:g} to {each.high:g}"
    return "true, false" if isinstance(each.default, bool) else "a text"


def _settings(method: Method) -> list[str]:
    place, loop = FAMILIES[method.family]
    own = [entry for entry in method.parameters if entry not in loop]
    lines = settings_table(own, method.names) if own else ["None of its own."]
    if len(own) < len(method.parameters):
        theirs = [
            f"`{name}` for `{ours}`"
            for name, ours in method.names.items()
            if ours not in [entry.name for entry in own] and name not in CANVAS_NAMES
        ]
        also = f" It also understands {', '.join(theirs)}." if theirs else ""
        lines.append(f"\nAnd [those of the loop](../methods.md#{place}).{also}")
    return lines


def _on_prompts(method: Method, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if method.name == "greedy":
        return ["It is what the others are measured against: [all figures](../methods.md)."]
    found = [
        (file, _line(method, row, result))
        for file, result in results.items()
        for row in result["methods"]
        if row["method"].partition("(")[0] == method.name and "+" not in row["method"]
    ]
    if found:
        sources = dict.fromkeys(line(file) for file, _ in found)
        lines = [*(said for _, said in found), "", *(f"- {source}" for source in sources)]
        return [*lines, "\n[All methods side by side](../methods.md#all-methods-one-run)."]
    return [
        "Not in the committed results; `paradecode bench -d` measures it ([how](../benchmarks.md))."
    ]


def _on_tasks(method: Method, parallel: Mapping[str, Any]) -> list[str]:
    every = parallel["aggregates"]["methods"]
    rows = [row for row in every if row["method"].partition("(")[0] == method.name]
    if not rows:
        return [
            "Not in the committed results, as it needs a trained file or model; "
            "`paradecode bench --suite parallel -d` measures it ([how](../benchmarks.md))."
        ]
    model, cores = parallel["model"], parallel["machine"]["cores"]
    reference = [row for row in every if row["method"] == "static" != method.name]
    lines = [
        f"`{model}`, {rows[0]['total']['items']} held-out instances, {cores} cores; "
        "95 % intervals. Forwards *within the text* are those that decided a token of it "
        "([why that matters](../benchmarks.md#what-is-counted)).\n",
        "| setting | right answers | tokens a forward | within the text | rows a token |",
        "|---|---|---|---|---|",
    ]
    for row in [*reference, *rows]:
        total = row["total"]
        cells = [
            f"`{row['method']}`", _interval(total["exact"], 100, " %"),
            _interval(total["per_forward"]), _interval(total["per_deciding"]),
            f"{total['rows']:.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", line(PARALLEL)]


def _interval(found: Mapping[str, float], scale: float = 1, unit: str = "") -> str:
    value, low, high = (scale * found[name] for name in ("value", "low", "high"))
    digits = 1 if unit else 2
    return f"{value:.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f})"


def _line(method: Method, row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    over = row["speed_up"]
    draft = f" with {result['draft_model']}" if method.models else ""
    groups = {name: group["value"] for name, group in row["groups"].items()}
    best, worst = max(groups, key=groups.__getitem__), min(groups, key=groups.__getitem__)
    return (
        f"- `{row['method']}`, {result['model']}{draft}, {result['machine']['cores']} cores: "
        f"**{over['value']:.2f}** times plain decoding ({over['low']:.2f} to {over['high']:.2f}), "
        f"from {groups[worst]:.2f} ({worst}) to {groups[best]:.2f} ({best}); mean acceptance "
        f"length {row['mean_acceptance_length']:.2f}; {row['equal_to_plain']} of "
        f"{row['prompts']} outputs equal to plain decoding's."
    )
