"""The command line: one file a command, each thin over the rooms below."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from paradecode.cli.chat import chat
from paradecode.cli.console import err
from paradecode.cli.datastore import datastore
from paradecode.cli.demo import demo
from paradecode.cli.generate import generate
from paradecode.cli.info import info
from paradecode.cli.methods import show_methods
from paradecode.cli.models import models_app
from paradecode.core.errors import ParadecodeError

app = typer.Typer(
    help="Parallel decoding of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(chat)
app.command()(demo)
app.command(name="methods")(show_methods)
app.add_typer(models_app, name="models")
app.command()(info)
app.command()(datastore)


def main() -> None:
    """Entry point: errors that a user can act on are one line, not a traceback."""
    try:
        app()
    except ParadecodeError as error:
        err.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
