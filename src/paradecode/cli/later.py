"""Commands whose names and help are known at once, and whose code is imported when they run.

Another package adds a command by an entry point of the group ``paradecode.commands``. The entry
point's name is the command's name, a colon, and one line of help, because a list of commands
imports nothing. The entry point loads a Typer app, or a function with Typer's parameters.
"""

from __future__ import annotations

import gc
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from paradecode.core.errors import InvalidInput

GROUP = "paradecode.commands"
ENGINE = {
    "generate:generate": "Answer one prompt, or every conversation of a file.",
    "rank:rank":
        "Order continuations of a text by their mean log-probability, all in one forward.",
    "trace:trace": "Answer a prompt and write a page that replays every forward.",
    "chat:chat":
        "Talk to a model. An empty line or Ctrl-D ends the chat; Ctrl-C stops an answer.",
    "demo:demo": "Decode three prompts plainly and in parallel, and compare the speeds.",
    "methods:show_methods":
        "List all decoding methods and their guarantees; with a name, show paper and settings.",
    "models:models_app": "List, download or delete models.",
    "info:info": "Show this machine's versions, kernels, and the cost of a forward.",
    "doctor:doctor": "Show what is installed, and what is slow on this machine and why.",
    "serve:serve":
        "Serve models over HTTP, as OpenAI's API. Ctrl-C finishes accepted requests, then stops.",
    "datastore:datastore":
        "Build the file that the method `retrieval` drafts from, with a model's tokenizer.",
}  # fmt: skip
"""The engine's commands: file and object below ``paradecode.cli`` -> one line of help."""
LABORATORY = ("bench", "plan", "replay", "report", "train", "tune", "verify")
"""Names of the commands of the package ``paradecode-lab``."""


class LaterCommand(TyperCommand):
    """A command that is imported when it is run.

    Args:
        text: the command's name, which may be followed by a colon and one line of help.
        entry: entry point that loads the command; None if the command's package is missing.
    """

    def __init__(self, text: str, entry: EntryPoint | None) -> None:
        name, _, said = text.partition(":")
        said = said.strip()
        super().__init__(name.strip(), help=said, short_help=said, hidden=entry is None)
        self.entry = entry

    def load(self) -> Any:
        """Import the command.

        Raises:
            InvalidInput: if the command's package is not installed.
        """
        if self.entry is None:
            fix = 'install paradecode-lab: pip install "paradecode[lab]", or -e lab in the checkout'
            raise InvalidInput("command", self.name, fix)
        found = self.entry.load()
        if not gc.isenabled():  # What is imported stays, so it is never looked through.
            gc.freeze()
            gc.enable()
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(found)
        return typer.main.get_command(app)

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Return the context of the imported command, which then parses the words and runs."""
        return self.load().make_context(*arguments, **more)


class Program(TyperGroup):
    """The engine's commands, followed by those of other packages.

    If two commands have the same name, the engine's command is used.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        missing = [LaterCommand(name, None) for name in LABORATORY]
        found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
        later = [LaterCommand(entry.name, entry) for entry in found]
        own = [
            LaterCommand(
                f"{place.partition(':')[0]}: {said}",
                EntryPoint(place, f"paradecode.cli.{place}", GROUP),
            )
            for place, said in ENGINE.items()
        ]
        # A dictionary keeps the order of its first keys, so the engine's commands stay first.
        self.commands = {str(each.name): each for each in (*own, *missing, *later, *own)}
