"""`paradecode demo`: a race of plain and parallel decoding."""

from __future__ import annotations

from contextlib import ExitStack

import typer

from paradecode.cli.console import err, out
from paradecode.cli.options import Loading, grouped, option
from paradecode.core.sampling import SamplingParams
from paradecode.methods.choice import AUTO


@grouped
def demo(
    loading: Loading,
    decoder: str = option(AUTO, "Use this decoding method.", "--decoder -d"),
    max_tokens: int = option(320, "Generate at most this many tokens."),
) -> None:
    """Decode three prompts plainly and in parallel, and compare the speeds."""
    from paradecode.cli.side_by_side import run_demo
    from paradecode.llm import LLM
    from paradecode.models.catalogue import find

    SamplingParams(max_tokens=max_tokens)  # A wrong number is refused before a model is loaded.
    diffusion = find("paradecode/tiny-diffusion")
    assert diffusion is not None
    with ExitStack() as opened:
        llm = opened.enter_context(loading.open(decoder=decoder))
        canvas = None
        if diffusion.present:
            canvas = opened.enter_context(
                LLM(
                    diffusion.name,
                    backend=loading.backend,
                    device=loading.device,
                    threads=loading.threads,
                )
            )
        else:
            err.print(f"There is no diffusion model for the third race: {diffusion.fix}")
        compared = run_demo(llm, canvas, out, max_tokens)
    if any(each.bounded and each.differences != [None] for each in compared.values()):
        err.print("[yellow]An output differs from plain decoding; see docs on numerical ties.[/]")
        raise typer.Exit(1)
