"""`paradecode train draft-tree`: the shape of the drafts of `stand`, for `tree=FILE`."""

from __future__ import annotations

from pathlib import Path

from paradecode.cli.console import out
from paradecode.cli.options import Loading, grouped, option
from paradecode.cli.outputs import writable
from paradecode.cli.progress import watched
from paradecode_lab.commands.train_steps import Output


@grouped
def draft_tree(
    output: Output,
    loading: Loading,
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: the package's."),
    limit: int = option(0, "Only so many conversations; 0: all.", min=0),
    max_tokens: int = option(128, "Most tokens of an answer.", min=1),
    temperature: float = option(
        0.0, "Of the answers; above 0 for verifiers that test draws.", min=0.0, max=2.0
    ),
    seed: int = option(0, "Of the answers.", min=0),
) -> None:
    """Which places of a tree `stand` gets right on this model; changes no output."""
    writable("OUTPUT", output)
    from paradecode_lab.training.acceptance.draft_tree import measure_tree
    from paradecode_lab.training.acceptance.workload import DraftWorkload

    workload = DraftWorkload(prompts, limit, max_tokens, temperature, seed)
    with loading.open() as llm:
        items = workload.items(llm)
        tree = watched("decoding", lambda tick: measure_tree(llm, items, workload.params(), tick))
        tree.save(output, llm.config.name)
    best = sorted(tree.rates.values(), reverse=True)
    gains = ", ".join(f"{sum(best[:count]):.2f} of {count}" for count in (8, 16, 64))
    out.print(f"{len(best)} places in {output}; accepted of the best places: {gains}",
              soft_wrap=True, highlight=False)  # fmt: skip
