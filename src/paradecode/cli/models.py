"""`paradecode models`: list the catalogue, and download its models."""

from __future__ import annotations

import typer
from rich.table import Table

from paradecode.cli.console import out, print_json
from paradecode.cli.download import downloaded
from paradecode.cli.options import Json, argument, grouped
from paradecode.models.catalogue import cache_folder, list_models, named, remove

models_app = typer.Typer(
    help="List, download or delete models.", invoke_without_command=True, add_completion=False
)


@models_app.callback()
def show_models(context: typer.Context, as_json: Json = False) -> None:
    """List the models of the catalogue, and whether each is on this machine."""
    if context.invoked_subcommand is not None:
        return
    known = list_models()
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "family": entry.family,
                    "licence": entry.licence,
                    "size": entry.size,
                    "present": entry.present,
                    "path": str(entry.path) if entry.path else None,
                }
                for entry in known
            ]
        )
        return
    table = Table()
    table.add_column("model", no_wrap=True)  # Users copy this name.
    for head in ("family", "size", "licence", "present"):
        table.add_column(head, overflow="fold")
    for entry in known:
        size = f"{entry.size / 1e6:.0f} MB"
        table.add_row(
            entry.name, entry.family, size, entry.licence, "yes" if entry.present else "no"
        )
    out.print(table)
    kept = [entry for entry in known if entry.package is not None and entry.cached.is_file()]
    held = sum(entry.cached.stat().st_size for entry in kept)
    if kept:
        out.print(f"{held / 1e6:.0f} MB in {cache_folder()}", highlight=False, soft_wrap=True)


@models_app.command(name="pull")
@grouped
def pull_model(
    model: str = argument("default", "Name of a model in the catalogue."),
) -> None:
    """Download a model of the catalogue and check its hash."""
    out.print(str(downloaded(named(model).name)), soft_wrap=True, highlight=False)


@models_app.command(name="rm")
@grouped
def remove_model(
    model: str = argument("default", "Name of a model in the catalogue."),
) -> None:
    """Delete the downloaded file of a model."""
    out.print(f"removed {remove(model)}", soft_wrap=True, highlight=False)
