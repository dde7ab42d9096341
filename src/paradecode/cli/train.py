"""`paradecode train`: the small trained parts of methods. Here those of drafts' acceptance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paradecode.cli.options import Json, Loading, grouped
from paradecode.cli.train_steps import Output, Samples, logged, ready, trained
from paradecode.methods.registry import parse

if TYPE_CHECKING:
    from paradecode.training.acceptance.workload import DraftWorkload

train_app = typer.Typer(help="Train the small parts that some methods need.", no_args_is_help=True)

CHAINS = "layer-skip(skip=0.1,width=1)"
TREES = "layer-skip(skip=0.1,width=4)"
"""What is recorded when nothing is said: needs no second model."""

Recorded = Annotated[
    str, typer.Option("--decoder", "-d", help="The method whose drafts are recorded.")
]
DraftModel = Annotated[str | None, typer.Option(help="The small model of methods that need one.")]


@dataclass(frozen=True)
class Learning:
    """What is decoded to learn from, and how long it is learnt."""

    prompts: Annotated[
        Path | None, typer.Option(help="JSONL of {id, group, turns}; default: the package's.")
    ] = None
    limit: Annotated[int, typer.Option(help="Only so many conversations; 0 takes all.", min=0)] = 0
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1)] = 128
    temperature: Annotated[float, typer.Option(help="Of the answers; 0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(help="Of the answers, the split and the weights.")] = 0
    samples: Samples = None
    epochs: Annotated[int, typer.Option(help="Passes over the samples.", min=1, max=10000)] = 20

    def workload(self) -> DraftWorkload:
        from paradecode.training.acceptance.workload import DraftWorkload

        workload = DraftWorkload(
            self.prompts, self.limit, self.max_tokens, self.temperature, self.seed
        )
        workload.params()  # Refuse a bad setting before a model is loaded.
        return workload


@train_app.command(name="acceptance-head")
@grouped
def acceptance_head(
    output: Output,
    loading: Loading,
    learning: Learning,
    decoder: Recorded = CHAINS,
    draft_model: DraftModel = None,
    blocks: Annotated[int, typer.Option(help="Residual blocks.", min=0, max=16)] = 3,
    rejection_weight: Annotated[
        float, typer.Option(help="What a rejected token counts in the loss.", min=0.01, max=1000)
    ] = 6.0,
    as_json: Json = False,
) -> None:
    """SpecDec++'s head: will a draft token be accepted? For `acceptance_head=FILE`."""
    ready(output, learning.samples)
    from paradecode.training.acceptance.head_fit import HeadSettings, fit_head
    from paradecode.training.acceptance.head_samples import (
        load_head_samples,
        record_head_samples,
        save_head_samples,
    )

    spec, workload = parse(decoder), learning.workload()
    with loading.open(decoder=spec, draft_model=draft_model) as llm:
        samples = logged(
            learning.samples, workload.digest(llm, spec), load_head_samples, save_head_samples,
            lambda tick: record_head_samples(
                llm, workload.items(llm), spec, workload.params(), tick
            ),
        )  # fmt: skip
    settings = HeadSettings(blocks, rejection_weight, epochs=learning.epochs, seed=learning.seed)
    use = f"{spec.method.name}(budget='specdec++',acceptance_head='{output}')"
    trained(output, use, partial(fit_head, samples, settings), as_json)


@train_app.command(name="tree-selector")
@grouped
def tree_selector(
    output: Output,
    loading: Loading,
    learning: Learning,
    decoder: Recorded = TREES,
    draft_model: DraftModel = None,
    as_json: Json = False,
) -> None:
    """The selector of delayed trees: which trunk, which branches? For `tree_selector=FILE`."""
    ready(output, learning.samples)
    from paradecode.training.acceptance.selector_fit import SelectorSettings, fit_selector
    from paradecode.training.acceptance.selector_samples import (
        load_selector_samples,
        record_selector_samples,
        save_selector_samples,
    )
    from paradecode.training.acceptance.workload import draft_size, drafting

    spec, workload = parse(decoder), learning.workload()
    load = partial(load_selector_samples, count=draft_size(drafting(spec)))
    with loading.open(decoder=spec, draft_model=draft_model) as llm:
        samples = logged(
            learning.samples, workload.digest(llm, spec), load, save_selector_samples,
            lambda tick: record_selector_samples(
                llm, workload.items(llm), spec, workload.params(), tick
            ),
        )  # fmt: skip
    settings = SelectorSettings(epochs=learning.epochs, seed=learning.seed)
    use = f"{spec.method.name}(budget='delayed',tree_selector='{output}')"
    trained(output, use, partial(fit_selector, samples, settings), as_json)
