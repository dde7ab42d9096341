"""`paradecode train priors`: how often drafted tokens are right on a model, for `priors=FILE`."""

from __future__ import annotations

from pathlib import Path

from paradecode.cli.console import out
from paradecode.cli.options import Loading, grouped, option
from paradecode.cli.outputs import writable
from paradecode.cli.progress import watched
from paradecode_lab.commands.train_steps import Output


@grouped
def priors(
    output: Output,
    loading: Loading,
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: the package's."),
    limit: int = option(0, "Only so many conversations; 0: all.", min=0),
    max_tokens: int = option(128, "Most tokens of an answer.", min=1),
) -> None:
    """What drafters without a model start from, measured on this one; changes no output."""
    writable("OUTPUT", output)
    from paradecode.methods.draft.model_free import save_priors
    from paradecode_lab.training.acceptance.priors import measure_priors
    from paradecode_lab.training.acceptance.workload import DraftWorkload

    workload = DraftWorkload(prompts, limit, max_tokens)
    with loading.open() as llm:
        items = workload.items(llm)
        found = watched(
            "decoding", lambda tick: measure_priors(llm, items, workload.params(), tick)
        )
        save_priors(output, llm.config.name, found)
    out.print(f"priors of {llm.config.name} in {output}", soft_wrap=True, highlight=False)
