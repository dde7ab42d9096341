"""`paradecode methods`: every method and part in one line each, or everything about one of them."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

from paradecode.cli.console import print_json
from paradecode.cli.options import Json, argument, grouped, option
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.loop import CanvasSettings
from paradecode.methods.draft.loop import DraftSettings
from paradecode.methods.parts import Method, Parameter, Part, find, known, near, parameters_of
from paradecode.methods.specs import methods
from paradecode.search.scorers.scorer import scorers
from paradecode.search.strategies import strategies

WIDTH = 80
KINDS = {
    "budget": "budgets", "verifier": "verifiers", "blocks": "blocks", "cache": "caches",
    "search": "searches", "scorer": "scorers",
}  # fmt: skip
"""Kind of a part -> its heading in the list."""
START = (
    "Start here: `prompt-lookup`, which is the default, then `suffix` and `token-recycling`; for a "
    "diffusion model `threshold`, which is its default, then `assd`."
)
GROUPS = (
    "works now", "needs a trained head (head=FOLDER)", "needs a draft model (--draft-model)",
    "needs training",
)  # fmt: skip
LOOP = [entry.name for of in (DraftSettings, CanvasSettings) for entry in parameters_of(of)]


@grouped
def show_methods(
    name: str | None = argument(None, "Show everything about this method or part."),
    every: bool = option(False, "Show everything about every method.", "--all"),
    as_json: Json = False,
) -> None:
    """List all decoding methods and their guarantees; with a name, show paper and settings."""
    strategies()
    scorers()
    chosen = sorted(methods().values(), key=lambda method: (method.family, method.name))
    parts: list[Part] = list(chosen)
    if name is not None:
        parts = [part for kind in ("method", *KINDS) if (part := find(kind, name))]
        if not parts:
            raise InvalidInput("NAME", name, near("method", name))
    if as_json:
        from paradecode.cli.records import part_record

        print_json([part_record(part) for part in parts])
    elif name is not None:
        print("\n\n".join(map(described, parts)))
    elif every:
        every_part = [*chosen, *(part for kind in KINDS for part in known(kind).values())]
        print("\n\n".join(described(part, brief=True) for part in every_part))
    else:
        print(_list(chosen, columns()))


def columns() -> int:
    """Return the terminal's number of columns, and many for a pipe, which takes whole lines."""
    shown = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if shown else 1 << 16


def _list(known_methods: list[Method], width: int) -> str:
    lines = [_wrapped(START)]
    groups: dict[tuple[str, int], list[Method]] = {}
    for method in known_methods:
        groups.setdefault((method.family, _group(method)), []).append(method)
    for (family, group), members in sorted(groups.items()):
        lines += [f"{family}, {GROUPS[group]}:", *(_row(method, width) for method in members)]
    for kind, plural in KINDS.items():
        lines.append(_wrapped(f"{plural}: {', '.join(known(kind))}"))
    lines.append("`paradecode methods NAME` shows all about one of them, `--all` about all.")
    return "\n".join(lines)


def _group(method: Method) -> int:
    """Return the index of a method's group in GROUPS."""
    if method.models:
        return 2
    if method.training == "none":
        return 0
    return 1 if any(entry.name == "head" for entry in method.parameters) else 3


def _row(method: Method, width: int) -> str:
    head = f"  {method.name:<18} {method.guarantee:<6} "
    room = max(width - len(head), WIDTH // 4)
    return head + textwrap.shorten(_plain(method.summary), room, placeholder=" ...")


def described(part: Part, brief: bool = False) -> str:
    """Return a description of a part.

    With ``brief``, it leaves out what many parts have in common.
    """
    what = part.family if isinstance(part, Method) else part.kind
    paper = f"{part.paper} (arXiv {part.arxiv})" if part.arxiv else part.paper
    loop = [entry for entry in part.parameters if entry.name in LOOP and part.kind == "method"]
    texts = [
        f"{part.name} ({what}, {part.guarantee}): {part.summary}",
        f"Paper: {paper}" if paper else "",
        f"To train: {part.training}" if part.training != "none" else "",
        f"Also called: {', '.join(part.aliases)}" if part.aliases else "",
        *(part.idea.split("\n\n") if not brief else ""),
        f"When: {part.when}" if part.when and not brief else "",
    ]
    lines = [_wrapped(text) for text in texts if text]
    lines += [_setting(entry) for entry in part.parameters if entry not in loop or not brief]
    if loop and brief:
        lines.append(_wrapped(f"  of the loop: {', '.join(entry.name for entry in loop)}"))
    return "\n".join(lines)


def _setting(entry: Parameter) -> str:
    if entry.options:
        allowed = f", one of {', '.join(entry.options)}"
    elif entry.low is not None and entry.high is not None:
        allowed = f", {entry.low:g} to {entry.high:g}"
    else:
        allowed = ", a file" if entry.local else ""
    default = "none" if entry.default == "" else entry.default
    return _wrapped(f"  {entry.name}={default}: {entry.help}{allowed}")


def _plain(docstring: str) -> str:
    """Return the docstring without the marks of code and references."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", docstring).replace("``", "`")


def _wrapped(text: str) -> str:
    indent = "    " if text.startswith("  ") else "  "
    lines = textwrap.wrap(
        " ".join(_plain(text).split()),
        WIDTH,
        subsequent_indent=indent,
        initial_indent=indent[2:],
        break_on_hyphens=False,
    )
    return "\n".join(lines)
