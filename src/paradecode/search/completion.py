"""Runs searches to their completions: the answer, the other branches, and their total cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from paradecode.completion import Completion, SearchCost, SearchedBranch, completion_of
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.trace import Stats, Step
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.search.branch import Branch, Searched, Start
from paradecode.search.run import SearchRun
from paradecode.search.scorers.scorer import Scorer, find_scorer
from paradecode.search.strategies import find_strategy

SUMMED = (
    "forwards", "rows", "target_seconds", "other_model_seconds", "decoder_seconds",
)  # fmt: skip


def search_together(
    engine: Engine,
    groups: Sequence[Sequence[GenerationRequest]],
    search: str,
    text_of: Callable[[Sequence[int]], str],
    scorer: Scorer | None = None,
) -> list[Completion]:
    """Run a search for each prompt, and return the results. A failed search returns its error.

    Args:
        groups: for each prompt a list with its only request.
        search: spec of the strategy.
        text_of: see :class:`SearchRun`.
        scorer: see :func:`find_scorer`.

    Raises:
        InvalidInput: if a prompt wants several outputs, or the strategy is unknown.
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


def completion_of_search(run: SearchRun) -> Completion:
    """Return the best branch, with the others as its ``alternatives``.

    If an error ended the search, the completion has this error.
    """
    if run.found is None:
        error = run.error or DecoderError("the search has not ended")
        prompt = run.request.prompt.tolist()
        return Completion("", [], "error", Stats(), [], prompt, error=error)
    found = run.found
    cost = SearchCost(
        branches=len(run.sequences) if found.made is None else len(found.scores),
        tokens=sum(run.made) if found.made is None else found.made,
        rows=round(sum(sequence.rows for sequence in [*run.sequences, *run.readings])),
        seconds=run.ended - run.started,
        scores=found.scores,
        tree=_tree(run, found),
    )
    scored = run.request.params.logprobs is not None
    others = tuple(_completion(branch, scored) for branch in found.others if branch.sequence)
    return replace(_completion(found.best, scored), alternatives=others, search=cost)


def _completion(branch: Branch, scored: bool) -> Completion:
    """Return a branch, together with the branches that it continues, as one completion.

    Args:
        scored: True if the request wants log-probabilities. A search may need them although the
            request does not.
    """
    chain = [*_chain(branch)][::-1]
    stats, trace = _joined(chain, len(branch.tokens))
    return replace(
        completion_of(chain[-1]),
        stats=stats,
        text=branch.text,
        token_ids=list(branch.tokens),
        finish_reason=branch.reason or "cancelled",
        trace=trace,
        logprobs=[entry for sequence in chain for entry in sequence.logprobs] if scored else None,
    )


def _joined(chain: Sequence[LiveSequence], generated: int) -> tuple[Stats, list[Step]]:
    """Return the summed statistics and all steps of consecutive branches, as one output."""
    each, trace = [sequence.stats for sequence in chain], list[Step]()
    forwards = 0
    for sequence, own in zip(chain, each):
        trace += [replace(step, forward=step.forward + forwards) for step in sequence.trace]
        forwards += own.forwards
    summed = {name: sum(getattr(own, name) for own in each) for name in SUMMED}
    first = each[0]
    spent = sum(own.prefill_seconds + own.decode_seconds for own in each)
    stats = Stats.of(
        trace, **summed, generated=generated,
        prompt_tokens=first.prompt_tokens, cached_tokens=first.cached_tokens,
        queue_seconds=first.queue_seconds, decode_seconds=spent - first.prefill_seconds,
    )  # fmt: skip
    return stats, trace


def _tree(run: SearchRun, searched: Searched) -> tuple[SearchedBranch, ...]:
    if searched.made is not None:  # The outputs are forks, or drafts, of one sequence.
        outputs = zip((searched.best, *searched.others), searched.scores, strict=True)
        root = SearchedBranch(None, "", 0, searched.best.reason or "cancelled", None, chosen=True)
        return (root, *(
            SearchedBranch(0, own.text, own.new, own.reason or "cancelled", score, place == 0)
            for place, (own, score) in enumerate(outputs)
        ))  # fmt: skip
    numbers = {sequence: number for number, sequence in enumerate(run.sequences)}
    chosen = {*_chain(searched.best)}
    found = []
    for sequence, start, made in zip(run.sequences, run.starts, run.made):
        before = None if start.after is None else start.after.sequence
        branch = SearchedBranch(
            after=None if before is None else numbers[before], text=_own_text(sequence, start),
            tokens=made, reason=sequence.finish_reason or "cancelled",
            score=run.scores.get(sequence), chosen=sequence in chosen,
        )  # fmt: skip
        found.append(branch)
    return tuple(found)


def _own_text(sequence: LiveSequence, start: Start) -> str:
    """Return the text that a branch adds to the text before it."""
    text, before = sequence.text.value, "" if start.after is None else start.after.text
    while not text.startswith(before):  # It ended within a character or a stop text.
        before = before[:-1]
    return text.removeprefix(before)


def _chain(branch: Branch | None) -> Iterator[LiveSequence]:
    """Yield the sequence of a branch, and then the sequences of the branches that it continues."""
    while branch is not None:
        if branch.sequence is not None:
            yield branch.sequence
        branch = branch.start.after
