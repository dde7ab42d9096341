"""`paradecode train priors`: how often drafted tokens are right on a model, for `priors=FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paradecode.cli.console import out
from paradecode.cli.options import Loading, grouped
from paradecode.cli.train_steps import Output, watched, writable


@grouped
def priors(
    output: Output,
    loading: Loading,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL of {id, group, turns}; default: the package's.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Only so many conversations; 0: all.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1)] = 128,
) -> None:
    """What drafters without a model start from, measured on this one; changes no output."""
    writable("OUTPUT", output)
    from paradecode.methods.draft.priors import save_priors
    from paradecode.training.acceptance.priors import measure_priors
    from paradecode.training.acceptance.workload import DraftWorkload

    workload = DraftWorkload(prompts, limit, max_tokens)
    with loading.open() as llm:
        items = workload.items(llm)
        found = watched(
            "decoding", lambda tick: measure_priors(llm, items, workload.params(), tick)
        )
        save_priors(output, llm.config.name, found)
    out.print(f"priors of {llm.config.name} in {output}", soft_wrap=True, highlight=False)
