"""Writes ``docs/cli.md``: every command and option, as the program's help describes them.

python -m tools.pages.cli_page docs/cli.md
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from typer.main import get_command

from paradecode.cli import app
from paradecode.cli.later import LaterCommand

WIDTH = 110
MOST = 20
"""Options that at least this many commands have are listed once for all of them."""
HEAD = """# Command line

Generated from the program by `python -m tools.pages.cli_page`; do not edit.

Every command has `-h` (`--help`), and `paradecode --version` prints the version. An error is one
line with exit status 2. It names the field, the value and the fix. Ctrl-C leaves with 130 and
nothing half-written. `bench`, `plan`, `replay`, `report`, `train`, `tune` and `verify` are of the
laboratory (`.venv/bin/pip install -e lab`).

A line beginning with *Also* names options of [another list](#options-of-several-commands).
Commands that open a model have the [options of models](#options-of-models) as well.
"""


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command that can be run, with its full name."""
    for name, named in group.commands.items():
        command = named.load() if isinstance(named, LaterCommand) else named
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield above + name, command
            yield from commands(command, f"{above}{name} ")
        else:
            yield above + name, command


def page() -> str:
    """Return the whole page."""
    found = {name: (command, _options(command)) for name, command in commands(get_command(app))}
    options = [option for _, lines in found.values() for option in lines.items()]
    counts = Counter(options)
    # If a name has several meanings, its usual one is the meaning that the largest number of
    # commands give it.
    usual = dict(sorted(counts, key=counts.__getitem__))
    counts = Counter(option for option in options if usual[option[0]] == option[1])
    parts = [HEAD]
    for name, (command, lines) in found.items():
        parts.append(f"## `{' '.join(['paradecode', name, *_arguments(command)])}`\n")
        parts.append(f"{_text(command.help)}\n")
        own = {key: line for key, line in lines.items() if counts[key, line] < 2}
        if own and name.startswith("train "):  # Twenty commands with like options.
            parts.append(
                f"*Own* {', '.join(f'`{key}`' for key in own)}; `--help` describes them.\n"
            )
        elif own:
            parts.append(_list(own.values()))
        if also := [f"`{key}`" for key, line in lines.items() if 2 <= counts[key, line] < MOST]:
            parts.append(f"*Also* {', '.join(also)}.\n")
    for kind, counted in (("several commands", range(2, MOST)), ("models", range(MOST, 999))):
        shared = [line for (_, line), count in counts.items() if count in counted]
        parts.append(f"## Options of {kind}\n\n{_list(shared)}")
    return "\n".join(parts)


def _list(lines: Iterable[str]) -> str:
    """Return options as the program's help shows them; long lines are wrapped."""
    return "\n".join(
        ["```text", *(fill(line, WIDTH, subsequent_indent="    ") for line in lines), "```", ""]
    )


def _arguments(command: Any) -> Iterator[str]:
    for entry in command.params:
        if entry.param_type_name == "argument":
            name = (entry.metavar or entry.name).upper() + " ..." * (entry.nargs == -1)
            yield name if entry.required else f"[{name}]"


def _options(command: Any) -> dict[str, str]:
    """Return the first name of each option -> its line."""
    lines = {}
    for entry in command.params:
        if entry.param_type_name != "option" or "--help" in entry.opts:
            continue
        # A switch that turns off what is off by default is not listed.
        names = [*entry.opts, *(entry.secondary_opts if entry.default is not False else ())]
        said = (entry.help or "").replace("``", "`")
        default = entry.default
        if default not in (None, False, True, "", (), []) and not callable(default):
            said = f"{said} [{default}]"
        lines[names[0]] = f"{', '.join(names)}  {said.strip()}"
    return lines


def _text(text: str) -> str:
    """Turn a docstring or a help text into Markdown."""
    first = inspect.cleandoc(text).partition("\f")[0].strip()
    return first.replace("``", "`").replace("|", "\\|")


def main(target: str) -> None:
    Path(target).write_text(page(), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
