"""``docs/cli.md``: every command and option, as the program's help has them.

python -m tools.pages.cli_page docs/cli.md
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from paradecode.cli import app
from paradecode.cli.later import LaterCommand

SHARED = 20
"""An option that so many commands have in the same words is described once."""
HEAD = """# Command line

Generated from the program by `python -m tools.pages.cli_page`; do not edit.

Every command has `-h` (`--help`), and `paradecode --version` prints the version. An error is one
line with exit status 2. It names the field, the value and the fix. Ctrl-C leaves with 130 and
nothing half-written. `bench`, `replay`, `report`, `train`, `tune` and `verify` are of the
laboratory (`.venv/bin/pip install -e lab`).
"""


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the names of those above it."""
    for name, named in group.commands.items():
        command = named.load() if isinstance(named, LaterCommand) else named
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield above + name, command
            yield from commands(command, f"{above}{name} ")
        else:
            yield above + name, command


def page() -> str:
    """The whole page."""
    found = dict(commands(get_command(app)))
    counts = Counter(line for command in found.values() for line in _options(command))
    shared = [line for line, count in counts.items() if count >= SHARED]
    parts = [HEAD]
    for name, command in found.items():
        own = [line for line in _options(command) if line not in shared]
        parts.append(f"## `{' '.join(['paradecode', name, *_arguments(command)])}`\n")
        parts.append(f"{_text(command.help)}\n")
        if own:
            parts.append(_table(own))
        if len(own) < len(_options(command)):
            parts.append("It also has [options of models](#options-of-models).\n")
    parts.append(f"## Options of models\n\nMost commands have most of these.\n\n{_table(shared)}")
    return "\n".join(parts)


def _table(lines: Sequence[str]) -> str:
    return "\n".join(["| option | |", "|---|---|", *lines, ""])


def _arguments(command: Any) -> Iterator[str]:
    for entry in command.params:
        if entry.param_type_name == "argument":
            name = (entry.metavar or entry.name).upper() + " ..." * (entry.nargs == -1)
            yield name if entry.required else f"[{name}]"


def _options(command: Any) -> list[str]:
    """The line of a table of each option."""
    lines = []
    for entry in command.params:
        if entry.param_type_name != "option" or "--help" in entry.opts:
            continue
        names = [*entry.opts, *entry.secondary_opts]
        said = _text(entry.help or "")
        default = entry.default
        if default not in (None, False, True, "", (), []) and not callable(default):
            said = f"{said} Default: `{default}`."
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {shown} | {said.strip()} |")
    return lines


def _text(text: str) -> str:
    """A docstring or a help text as Markdown."""
    first = inspect.cleandoc(text).partition("\f")[0].strip()
    return first.replace("``", "`").replace("|", "\\|")


def main(target: str) -> None:
    Path(target).write_text(page(), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
