"""Fields of this server and of vLLM that ask for a search, and the search that they describe."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paradecode.core.errors import InvalidInput
from paradecode.search.run import MOST_BRANCHES
from paradecode.search.scorers.scorer import find_scorer
from paradecode.search.strategies import find_strategy, widest
from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.protocol.base import Body
from paradecode.serve.wire import SearchSpec

SpecText = Annotated[str, Field(min_length=1, max_length=1024)]
BEAMS = "beam"
"""Name of the strategy that ``use_beam_search`` chooses."""


class Searching(Body):
    """Fields of a request that wants a search over many branches for one prompt."""

    search: SpecText | None = Field(None, description="A strategy, such as `best-of(n=8)`.")
    scorer: SpecText | None = Field(None, description="What it prefers by, as `likelihood`.")
    max_branches: int | None = Field(None, ge=1, le=MOST_BRANCHES, description="At a time.")
    max_search_tokens: int | None = Field(
        None, ge=1, lt=1 << 31, description="Of all branches together."
    )
    show_branches: bool | None = Field(None, description="Stream what branches write, too.")
    best_of: int | None = Field(None, ge=1, le=MOST_BRANCHES, description="vLLM's `best-of`.")
    use_beam_search: bool | None = Field(None, description="vLLM's: beams, `n` of them.")
    length_penalty: float | None = Field(None, ge=-10, le=10, description="Of beams.")


def wanted_search(body: Searching, n: int, tokens: int, stream: bool) -> SearchSpec | None:
    """Return the search that a request asks for, or None if each output is a single sample.

    Args:
        n: number of outputs.
        tokens: the server's limit on the tokens of all branches.
        stream: whether the answer is streamed.

    Raises:
        ApiError: 400, naming the field that does not fit.
    """
    field, strategy = _strategy(body, n)
    if strategy is None:
        for name in ("scorer", "max_branches", "max_search_tokens", "show_branches"):
            if getattr(body, name):
                raise wrong(name, "it needs a search")
        return None
    most = body.max_branches or MOST_BRANCHES
    if (body.max_search_tokens or 1) > tokens:
        raise wrong("max_search_tokens", f"this server allows {tokens}")
    try:
        wide = widest(find_strategy(strategy, trusted=False))
    except InvalidInput as error:
        raise ApiError(400, str(error), param=field) from None
    if body.scorer is not None:
        try:
            find_scorer(body.scorer, trusted=False)
        except InvalidInput as error:
            raise ApiError(400, str(error), param="scorer") from None
    if wide > most:
        raise wrong(field, f"it begins {wide} branches at a time, of at most {most}")
    if n > wide:
        raise wrong("n", f"this search finds {wide} outputs at most")
    return SearchSpec(
        strategy=strategy, scorer=body.scorer, branches=wide,
        tokens=body.max_search_tokens or tokens, shows=bool(body.show_branches and stream),
    )  # fmt: skip


def _strategy(body: Searching, n: int) -> tuple[str, str | None]:
    """Return the name of the field that asks for a search, and the strategy of the search."""
    beams = body.use_beam_search
    asked = {"search": body.search, "best_of": body.best_of, "use_beam_search": beams or None}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise wrong(given[1], f"{given[0]} is a search already: give one of them")
    if not beams and body.length_penalty not in (None, 1):
        raise wrong("length_penalty", "it is of beams: give use_beam_search, or leave it out")
    if body.search is not None:
        return "search", body.search
    if beams:
        penalty = "" if body.length_penalty is None else f",length_penalty={body.length_penalty}"
        return "use_beam_search", f"{BEAMS}(width={n}{penalty})"
    if body.best_of is None or body.best_of == n:  # All samples are outputs.
        return "best_of", None
    if body.best_of < n:
        raise wrong("best_of", f"give at least n, {n}")
    return "best_of", f"best-of(n={body.best_of})"
