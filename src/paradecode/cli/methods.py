"""`paradecode methods`: the registry as a table."""

from __future__ import annotations

from rich.table import Table

from paradecode.cli.console import out, print_json
from paradecode.cli.options import Json
from paradecode.methods.canvas.method import CanvasSettings
from paradecode.methods.parts import parameters_of
from paradecode.methods.registry import methods


def show_methods(as_json: Json = False) -> None:
    """Every decoding method, with its guarantee and its paper."""
    from paradecode.report.records import method_record

    known = sorted(methods().values(), key=lambda method: (method.family, method.name))
    if as_json:
        print_json([method_record(method) for method in known])
        return
    table = Table("method", "family", "guarantee", "training", "paper", "settings")
    for method in known:
        paper = method.paper + (f" ({method.arxiv})" if method.arxiv else "")
        settings = ", ".join(f"{p.name}={p.default}" for p in method.parameters)
        table.add_row(
            method.name, method.family, method.guarantee, method.training, paper, settings
        )
    out.print(table)
    for each in parameters_of(CanvasSettings):
        if each.kind:
            out.print(f"{each.name}: {', '.join(each.options)}", soft_wrap=True, highlight=False)
