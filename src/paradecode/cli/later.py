"""Commands of other packages: their names and help are known at once, their code is imported late.

A package adds a command by an entry point of the group ``paradecode.commands``. The entry point's
name is the command's name, a colon, and one line of help, because a list of commands imports
nothing. The entry point loads a Typer app, or a function with Typer's parameters.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from paradecode.core.errors import InvalidInput

GROUP = "paradecode.commands"
LABORATORY = ("bench", "replay", "report", "train", "tune", "verify")
"""Commands of the package ``paradecode-lab``."""


class LaterCommand(TyperCommand):
    """A command that is imported when it is run."""

    def __init__(self, name: str, help: str, entry: EntryPoint | None) -> None:
        super().__init__(name, help=help, callback=None, hidden=entry is None)
        self.entry = entry

    def load(self) -> Any:
        """Import the command.

        Raises:
            InvalidInput: its package is not installed.
        """
        if self.entry is None:
            fix = 'install paradecode-lab: pip install "paradecode[lab]", or -e lab in the checkout'
            raise InvalidInput("command", self.name, fix)
        found = self.entry.load()
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(found)
        return typer.main.get_command(app)

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """The context of the imported command, so that this parses the words and is invoked."""
        return self.load().make_context(*arguments, **more)


class Program(TyperGroup):
    """The engine's commands, then those of other packages; of two equal names, the engine's
    counts."""

    def __init__(self, *, commands: Any = None, **settings: Any) -> None:
        later = {name: LaterCommand(name, "", None) for name in LABORATORY}
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
            name, _, said = entry.name.partition(":")
            later[name.strip()] = LaterCommand(name.strip(), said.strip(), entry)
        known = dict(commands or {})
        # The dictionary keeps the places of the engine's commands, which stand first.
        super().__init__(commands={**known, **later, **known}, **settings)
