"""`paradecode train jacobi`: an autoregressive model that guesses well behind wrong tokens."""

from __future__ import annotations

from paradecode.cli.options import Json, Loading, grouped, option
from paradecode_lab.commands.train_steps import RunFolder
from paradecode_lab.commands.train_tuned import (
    Texts,
    Tuning,
    fine_tuned,
    model_and_texts,
    ready_folder,
)

TWIN, MANY = Loading(model="paradecode/tiny-autoregressive"), Texts(limit=6000)
LONG = Tuning(rate=3e-4, steps=1000)


@grouped
def jacobi(
    output: RunFolder,
    loading: Loading = TWIN,
    texts: Texts = MANY,
    block: int = option(16, "Tokens of a block.", min=2, max=64),
    window: int = option(4, "Blocks over which noise grows.", min=1, max=64),
    weight: float = option(10.0, "Of the next-token loss.", min=0, max=1000),
    tuning: Tuning = LONG,
    as_json: Json = False,
) -> None:
    """Jacobi Forcing: a copy of the model that is right behind wrong tokens. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode_lab.training.jacobi.forcing import JacobiSettings, fit_jacobi
    from paradecode_lab.training.jacobi.states import JacobiStates, record_states

    settings = JacobiSettings(weight=weight, **vars(tuning), seed=texts.seed)
    made = model_and_texts(
        loading, texts, JacobiStates, record_states, "jacobi", block, window, folder=output
    )
    use = f"'jacobi(num_speculative_tokens={min(2 * block, 64)},explore=always)'"
    fine_tuned(output, *made, settings, fit_jacobi, use, as_json)
