"""Find strategies by name (the registry's kind `search`), and run several searches together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from paradecode.completion import Completion
from paradecode.core.errors import InvalidInput
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.methods import parts
from paradecode.search.branch import Strategy
from paradecode.search.completion import completion_of_search
from paradecode.search.run import SearchRun
from paradecode.search.scorers.scorer import Scorer, find_scorer


def strategies() -> Mapping[str, parts.Part]:
    """Return all strategies by name: built-in ones, and those that the program has registered."""
    parts.load_room(__name__.rpartition(".")[0])
    return parts.known("search")


WIDTHS = ("width", "n", "k", "calibration")
"""Names of settings that are numbers of branches."""


def widest(strategy: Strategy) -> int:
    """Return the most branches that a strategy begins at a time, according to its settings."""
    given = vars(strategy)
    return max((int(given[name]) for name in WIDTHS if name in given), default=1)


def find_strategy(text: object, trusted: bool = True) -> Strategy:
    """Return the strategy that ``name`` or ``name(key=value, ...)`` describes.

    Args:
        trusted: False if ``text`` comes from a request, which may not name files of this machine.

    Raises:
        InvalidInput: if a name or setting is unknown or does not fit.
    """
    strategies()
    if not isinstance(text, str):
        raise InvalidInput("search", text, "give a text such as 'best-of(n=4)'")
    found, settings = parts.read("search", "search", text, trusted)
    return cast(Strategy, found.build(**settings))


# Several searches at the same time, each for a prompt of its own.


def search_together(
    engine: Engine,
    groups: Sequence[Sequence[GenerationRequest]],
    search: str,
    text_of: Callable[[Sequence[int]], str],
    scorer: Scorer | None = None,
) -> list[Completion]:
    """Run a search for each prompt, and return the results. A failed one has its error.

    Args:
        groups: for each prompt a list with its only request.
        search: spec of the strategy.
        text_of: see :class:`SearchRun`.
        scorer: see :func:`find_scorer`.

    Raises:
        InvalidInput: if a prompt wants several outputs, or if the strategy is unknown.
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
