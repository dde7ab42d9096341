"""`paradecode demo`: a race of plain and parallel decoding."""

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
    """Three prompts, decoded plainly and in parallel: a race."""
    from paradecode.cli.side_by_side import run_demo
    from paradecode.llm import LLM

    with (
        loading.open(decoder=decoder) as llm,
        LLM(
            "paradecode/tiny-diffusion",
            backend=loading.backend, device=loading.device, threads=loading.threads,
        ) as canvas,
    ):  # fmt: skip
        compared = run_demo(llm, canvas, out, max_tokens)
    if any(each.verified and each.first_difference is not None for each in compared):
        err.print("[yellow]An output differs from plain decoding; see docs on numerical ties.[/]")
        raise typer.Exit(1)
