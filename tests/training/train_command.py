"""Run `paradecode train` in this process."""

from typer.testing import CliRunner

from paradecode.cli import app


def run(*arguments: object) -> str:
    """Return what the command printed; raise the exception that ended it."""
    done = CliRunner().invoke(app, ["train", *map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.output
