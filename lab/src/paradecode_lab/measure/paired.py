"""Runs methods side by side in one engine: every method answers a prompt before the next prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import Stats, Step
from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode.timing.doubts import is_suspicious, verifies
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.statistics import Interval, interval, ratio_of_ratios


@dataclass(frozen=True)
class PairedRun:
    """The run of one method on one prompt.

    Attributes:
        group: group of the prompt.
        stats: totals of the request.
        trace: one step for each commit.
        output: token ids of the answer.
    """

    method: str
    prompt: str
    group: str
    stats: Stats
    trace: Sequence[Step]
    output: tuple[int, ...]

    @property
    def later(self) -> int:
        """Number of tokens after the first commit, whose time is the prefill's."""
        return self.stats.generated - self.stats.first_tokens

    @property
    def spent(self) -> tuple[float, float]:
        """Number of tokens after the first commit, and the seconds that they took."""
        return self.later, self.stats.decode_seconds


def decode_by_turns(
    llm: LLM,
    items: Sequence[Item],
    methods: Sequence[str],
    *,
    sampling: SamplingParams | None = None,
    salt: str = "",
    progress: Callable[[], None] = lambda: None,
) -> list[PairedRun]:
    """Decode each item by each method, in an order of methods that rotates from item to item.

    Answers are greedy unless ``sampling`` is given. The items limit their lengths. Each method is a
    tenant of its own (named with ``salt``), so that no method learns from another's answers.
    Without ``sampling`` the seed is 0, because some methods draw noise at temperature 0 as well,
    and this noise changes how many forwards they need.

    Raises:
        Exception: the error that ended a request.
    """
    runs = []
    for number, item in enumerate(items):
        params = replace(sampling or SamplingParams(seed=0), max_tokens=item.max_tokens)
        first = number % len(methods)
        for method in [*methods[first:], *methods[:first]]:
            output = llm.complete(
                [list(item.token_ids)], params, decoder=method, salt=f"{salt} {method}"
            )[0]
            if output.error is not None:
                raise output.error
            stats, ids = output.stats, tuple(output.token_ids)
            runs.append(PairedRun(method, item.id, item.group, stats, output.trace, ids))
            progress()
    return runs


def speed_up(
    runs: Sequence[PairedRun], method: str, plain: str, group: str | None = None
) -> Interval | None:
    """Return the decode speed of ``method`` over that of ``plain``, paired by prompt.

    Args:
        group: group of prompts that count; None means all prompts. The ratio is one of totals, so
            each token has the same weight.
    """
    base = {run.prompt: run for run in runs if run.method == plain}
    mine = [run for run in runs if run.method == method and group in (None, run.group)]
    rows = [(*run.spent, *base[run.prompt].spent) for run in mine]
    return interval(rows, ratio_of_ratios)


def generated_and_forwards(runs: Sequence[PairedRun], method: str) -> tuple[int, int]:
    """Return how many tokens a method's answers have, and how many target forwards made them."""
    mine = [run.stats for run in runs if run.method == method]
    return sum(stats.generated for stats in mine), sum(stats.forwards for stats in mine)


def beyond_forwards(runs: Sequence[PairedRun], method: str, plain: str) -> bool:
    """Decide whether a speed-up over plain decoding exceeds what saved forwards can explain."""
    over = speed_up(runs, method, plain)
    if over is None or not verifies(method, parse(method).guarantee):
        return False
    mine = [run for run in runs if run.method == method]
    # The first forward is the prompt's, which does not count.
    forwards = sum(run.stats.forwards - 1 for run in mine)
    return is_suspicious(over.low, sum(run.later for run in mine), forwards)


def equal(runs: Sequence[PairedRun], method: str, plain: str) -> int:
    """Return how many outputs of ``method`` equal those of ``plain``, token by token."""
    base = {run.prompt: run.output for run in runs if run.method == plain}
    return sum(run.output == base[run.prompt] for run in runs if run.method == method)
