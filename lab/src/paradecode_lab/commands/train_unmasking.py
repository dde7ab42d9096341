"""`paradecode train unmask-filter`, `joint-sampler`, `refine`, `r2`, `dparallel` and `jacobi`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from paradecode.cli.options import Json, Loading, grouped, option
from paradecode_lab.commands.train_steps import Output, RunFolder, logged, ready, trained
from paradecode_lab.commands.train_tuned import (
    Batch,
    OptimiserSteps,
    Texts,
    Tuning,
    fine_tuned,
    model_and_texts,
    ready_folder,
)

Block = Annotated[int, typer.Option(help="Number of positions of a block.", min=1, max=1024)]


TINY, DEFAULT = Loading(model="paradecode/tiny-diffusion"), Texts()
WHOLE, FEWER_TEXTS = Tuning(), Tuning(batch=8)


@grouped
def unmask_filter(
    output: Output,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    epochs: int = option(4000, "Number of passes over the samples.", min=1),
    as_json: Json = False,
) -> None:
    """Train Learn2PD's filter, which predicts final proposals, for `learn2pd(filter=FILE)`."""
    ready(output, texts.samples)
    from paradecode_lab.training.unmasking.filter_fit import FilterSettings, fit_filter
    from paradecode_lab.training.unmasking.filter_samples import (
        FilterSamples,
        record_filter_samples,
    )

    workload = texts.workload()
    with loading.open() as llm:
        samples = logged(
            FilterSamples, texts.samples, workload.origin(llm, "filter", block),
            partial(record_filter_samples, llm, workload, block), B=block,
        )  # fmt: skip
    fit = partial(fit_filter, samples, FilterSettings(epochs, seed=texts.seed))
    trained(output, f"learn2pd(filter='{output}')", fit, as_json)


@grouped
def joint_sampler(
    output: Output,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    width: int = option(0, "Width of the layer; 0 takes the model's, but at most 256.", min=0),
    depth: int = option(3, "Tell the layer at most this many tokens.", min=1, max=16),
    steps: OptimiserSteps = 600,
    batch: Batch = 16,
    as_json: Json = False,
) -> None:
    """Train ADJUST's layer, which tells each token of a forward the others. For `joint-sampler`."""
    ready(output, texts.samples)
    from paradecode_lab.training.unmasking.joint_fit import JointSettings, fit_joint
    from paradecode_lab.training.unmasking.trajectories import Trajectories, record_trajectories

    settings = JointSettings(width=width, depth=depth, steps=steps, batch=batch, seed=texts.seed)
    _, model, made = model_and_texts(
        loading, texts, Trajectories, record_trajectories, "trajectories", block
    )
    fit = partial(fit_joint, model, made, settings)
    trained(output, f"joint-sampler(layer='{output}')", fit, as_json)


@grouped
def refine(
    output: RunFolder,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    corrupted: float = option(0.05, "Share of visible tokens made wrong.", min=0.001, max=0.9),
    own: float = option(0.5, "Share of these from the model's own mistakes.", min=0, max=1),
    tuning: Tuning = WHOLE,
    as_json: Json = False,
) -> None:
    """Train ReDiff, a copy of the model that corrects tokens, for `refine`. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode_lab.training.unmasking.corrections import RefineSettings, fit_corrections
    from paradecode_lab.training.unmasking.trajectories import Trajectories, record_trajectories

    settings = RefineSettings(corrupted, own, **vars(tuning), seed=texts.seed)
    made = model_and_texts(
        loading, texts, Trajectories, record_trajectories, "trajectories", block, folder=output
    )
    fine_tuned(output, *made, settings, fit_corrections, "refine", as_json)


@grouped
def r2(
    output: RunFolder,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    draws: int = option(4, "Texts drawn for each prompt; the best is used.", min=1, max=64),
    tuning: Tuning = FEWER_TEXTS,
    as_json: Json = False,
) -> None:
    """Train R2-dLLM, a copy of the model that is surer of what it decodes quickly. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode_lab.training.unmasking.block_fits import fit_short
    from paradecode_lab.training.unmasking.block_masks import BlockSettings
    from paradecode_lab.training.unmasking.short_decodings import record_short_decodings
    from paradecode_lab.training.unmasking.trajectories import Trajectories

    settings = BlockSettings(block=block, **vars(tuning), seed=texts.seed)
    made = model_and_texts(
        loading,
        texts,
        Trajectories,
        record_short_decodings,
        "short decodings",
        block,
        draws,
        folder=output,
    )
    fine_tuned(output, *made, settings, fit_short, "r2", as_json)


@grouped
def dparallel(
    output: RunFolder,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    weight: float = option(2.0, "Weight of the entropy in the loss.", min=0, max=1000),
    tuning: Tuning = FEWER_TEXTS,
    as_json: Json = False,
) -> None:
    """Train dParallel, a copy of the model that is sure of many masks at once. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode_lab.training.unmasking.block_fits import CertaintySettings, fit_certainty
    from paradecode_lab.training.unmasking.trajectories import Trajectories, record_trajectories

    settings = CertaintySettings(weight=weight, block=block, **vars(tuning), seed=texts.seed)
    made = model_and_texts(
        loading, texts, Trajectories, record_trajectories, "trajectories", block, folder=output
    )
    use = "'threshold(score=entropy,threshold=0.5)'"
    fine_tuned(output, *made, settings, fit_certainty, use, as_json)


TWIN, MANY = Loading(model="paradecode/tiny-autoregressive"), Texts(limit=6000)
LONG = Tuning(rate=3e-4, steps=1000)


@grouped
def jacobi(
    output: RunFolder,
    loading: Loading = TWIN,
    texts: Texts = MANY,
    block: int = option(16, "Tokens of a block.", min=2, max=64),
    window: int = option(4, "Number of blocks over which the noise grows.", min=1, max=64),
    weight: float = option(10.0, "Weight of the next-token loss.", min=0, max=1000),
    tuning: Tuning = LONG,
    as_json: Json = False,
) -> None:
    """Train a copy of the model that is right even behind wrong tokens. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode_lab.training.jacobi.forcing import JacobiSettings, fit_jacobi
    from paradecode_lab.training.jacobi.states import JacobiStates, record_states

    settings = JacobiSettings(weight=weight, **vars(tuning), seed=texts.seed)
    made = model_and_texts(
        loading, texts, JacobiStates, record_states, "jacobi", block, window, folder=output
    )
    use = f"'jacobi(num_speculative_tokens={min(2 * block, 64)},explore=always)'"
    fine_tuned(output, *made, settings, fit_jacobi, use, as_json)
