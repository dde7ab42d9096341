"""The command line. Each command has a file, which only calls the rooms below it."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from paradecode import __version__
from paradecode.cli.console import STOPPED, ignore_lost_words
from paradecode.cli.later import Program
from paradecode.core.errors import ParadecodeError

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Base class of typer's errors for wrong words. It is click's, or that of typer's copy of click."""

NUMBERS = {"valid integer": "a whole number", "valid number": "a number"}
"""Words in typer's error messages -> what the user should give."""

WRONG = 2
"""Exit status of a command that could do nothing with its input."""

app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Panels would double the time of the list.
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def paradecode(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Parallel decoding of language models."""
    if version:
        print(f"paradecode {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the program. An error that a user can act on becomes one line, without a traceback."""
    ignore_lost_words()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # The encoding may lack characters.
            stream.reconfigure(errors="replace")
    try:
        status = app(prog_name="paradecode", standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # A full disk fails here, not while Python ends.
    except KeyboardInterrupt:
        status = STOPPED
    except typer.Abort:
        status = 1
    except UsageError as error:
        status = _fail(_usage(error))
    except ParadecodeError as error:
        status = _fail(str(error))
    except OSError as error:
        status = _unwritten(error)
    sys.exit(status)


def _fail(said: str) -> int:
    from rich.markup import escape

    from paradecode.cli.console import err

    with suppress(OSError):  # If stderr fails, nothing can be said.
        if said:
            err.print(f"[red]error:[/] {escape(said)}", highlight=False, soft_wrap=True)
    return WRONG


def _usage(error: Any) -> str:
    """Return typer's message about wrong words as one line.

    A help page is printed instead, and the result is empty.
    """
    if error.format_message().startswith("Usage:"):  # Without arguments it is help.
        print(error.format_message())
        return ""
    said = " ".join(error.format_message().split()).rstrip(".")
    where = error.ctx.command_path if error.ctx else "paradecode"
    kind = next((kind for words, kind in NUMBERS.items() if words in said), None)
    if "unexpected extra argument" in said:
        said += "; put a text of several words in quotes"
    elif "Invalid value" in said and (kind or _bounds(error.param)):
        said = f"{said.partition(': ')[0]}: give {kind or 'a number'}{_bounds(error.param)}"
    return f"{said}; `{where} --help` says what it takes" if said else ""


def _bounds(param: Any) -> str:
    """Return an option's bounds in words; they are its own, or those of its type in click."""
    own = param if hasattr(param, "min") else getattr(param, "type", None)
    low, high = getattr(own, "min", None), getattr(own, "max", None)
    if low is None:
        return "" if high is None else f" of at most {high:g}"
    return f" of at least {low:g}" if high is None else f" from {low:g} to {high:g}"


def _unwritten(error: OSError) -> int:
    """Return the exit status of a command whose output could not be written, as on a full disk."""
    with suppress(OSError):  # Otherwise buffered output fails again while Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # The reader has closed, as `head` does.
        return 0
    return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
