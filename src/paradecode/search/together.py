"""Several searches at the same time, each for a prompt of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paradecode.completion import Completion
from paradecode.core.errors import InvalidInput
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.search.completion import completion_of_search
from paradecode.search.run import SearchRun
from paradecode.search.scorers.scorer import Scorer, find_scorer
from paradecode.search.strategies import find_strategy


def search_together(
    engine: Engine,
    groups: Sequence[Sequence[GenerationRequest]],
    search: str,
    text_of: Callable[[Sequence[int]], str],
    scorer: Scorer | None = None,
) -> list[Completion]:
    """The result for each prompt; a search that fails gives a completion with its error.

    Args:
        groups: for each prompt a list with its one request.
        search: the strategy's spec.
        text_of: see :class:`SearchRun`.
        scorer: see :func:`find_scorer`.

    Raises:
        InvalidInput: for a prompt with several outputs, or a strategy that is not known.
    """
    runs: list[SearchRun] = []
    try:
        for first, *more in groups:
            if more:
                fix = "a search says itself how many outputs it makes: leave n at 1"
                raise InvalidInput("n", 1 + len(more), fix)
            prompt = text_of(first.prompt.tolist())
            strategy = find_strategy(search)
            rater = find_scorer(scorer)
            runs.append(SearchRun(engine, engine.seeded(first), strategy, text_of, prompt, rater))
        while any(not run.finished for run in runs):
            engine.step()
            for run in runs:
                run.advance()
    finally:
        for run in runs:
            run.close()
    return [completion_of_search(run) for run in runs]
