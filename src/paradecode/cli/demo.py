"""`paradecode demo`: the same answers decoded plainly and in parallel."""

from __future__ import annotations

import typer

from paradecode.cli.console import err, out
from paradecode.cli.options import Loading, grouped, option
from paradecode.methods.choice import AUTO


@grouped
def demo(
    loading: Loading,
    decoder: str = option(AUTO, "Method.", "--decoder -d"),
    max_tokens: int = option(128, "Most tokens to generate."),
) -> None:
    """Three prompts, decoded plainly and in parallel, side by side."""
    from paradecode.cli.side_by_side import run_demo

    with loading.open(decoder=decoder) as llm:
        compared = run_demo(llm, out, max_tokens)
    if any(comparison.first_difference is not None for comparison in compared):
        err.print("[yellow]An output differs from plain decoding; see docs on numerical ties.[/]")
        raise typer.Exit(1)
