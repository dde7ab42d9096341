"""What the results say of the targets of parallel decoding: met, missed, or not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paradecode.measure.statistics import Interval, gain
from paradecode.measure.suites.parallel.methods import (
    REFERENCE,
    cache_of,
    plain_of,
    read,
    without_cache,
)
from paradecode.measure.suites.parallel.results import Results
from paradecode.measure.suites.parallel.summary import (
    Comparison,
    Measured,
    compared,
    measured,
    tasks_of,
)
from paradecode.measure.tables import points, times
from paradecode.measure.tasks.tasks import BY_NAME

POLICIES, FEWER_FORWARDS = 3, 4.0
FEWER_DRAFTED_FORWARDS = 1.5
FEWER_ROWS = 2.0
MARGIN = 0.02
"""A loss of exact match as large as this must be outside of the interval. Without such a margin
a run of a few instances, whose intervals are wide, would find no loss in anything."""
COLLAPSE = 0.5
"""A task whose exact match falls below this share of the reference's has collapsed."""


@dataclass(frozen=True)
class Verdict:
    """A target, whether it is met (None: not measured), and the figures behind that."""

    target: str
    met: bool | None
    evidence: tuple[str, ...]

    @property
    def word(self) -> str:
        return {True: "met", False: "missed", None: "not measured"}[self.met]


def verdicts(results: Results) -> list[Verdict]:
    """The three targets, and whether ParallelBench's finding shows."""
    done = {method: own for method, own in measured(results).items() if method in results.methods}
    return [policies(done), drafted(done), caches(done), finding(done, results)]


def policies(done: Mapping[str, Measured]) -> Verdict:
    """At least 3 policies, ``static`` itself aside, with 4 times fewer forwards and no loss."""
    target = (
        f"at least {POLICIES} policies cut forwards a token by {FEWER_FORWARDS:g}x or more "
        f"at no loss of exact match"
    )
    compared_ = _against_reference(done)
    if not compared_:
        return Verdict(target, None, ())
    best: dict[str, tuple[float, str]] = {}
    for method, found in compared_.items():
        fewer = found.forwards
        if fewer is None or fewer.low < FEWER_FORWARDS or not is_lossless(found.gain):
            continue
        line = (
            f"`{method}`: {times(fewer)} fewer, exact match {points(found.gain)}; of those that "
            f"decide a token of the output {times(found.deciding)} fewer"
        )
        name = read(method).method.name
        best[name] = max(best.get(name, (0.0, "")), (fewer.value, line))
    lines = [line for _, line in sorted(best.values(), reverse=True)]
    return Verdict(target, len(best) >= POLICIES, tuple(lines))


def drafted(done: Mapping[str, Measured]) -> Verdict:
    """FreeDave: 1.5 times fewer forwards than plain decoding of the same blocks, same tokens."""
    target = f"`freedave` cuts forwards by {FEWER_DRAFTED_FORWARDS:g}x with identical output"
    met: list[bool] = []
    lines: list[str] = []
    for method in done:
        plain = plain_of(method)
        if read(method).method.name != "freedave" or cache_of(method) != "none":
            continue
        found = compared(done[method], done[plain]) if plain in done else None
        if found is None or found.forwards is None:
            continue
        same = found.identical == found.items
        met.append(same and found.forwards.low >= FEWER_DRAFTED_FORWARDS)
        lines.append(
            f"`{method}`: {times(found.forwards)} fewer than `{plain}`, "
            f"{found.identical} of {found.items} outputs identical"
        )
    return Verdict(target, any(met) if met else None, tuple(lines))


def caches(done: Mapping[str, Measured]) -> Verdict:
    """Prefix or dual cache with 2 times fewer rows than the same method without a cache."""
    target = f"prefix or dual caches cut computed rows by {FEWER_ROWS:g}x, with measured loss"
    met: list[bool] = []
    lines: list[str] = []
    reference = done.get(REFERENCE)
    for method in done:
        base = without_cache(method)
        if cache_of(method) not in ("prefix", "dual") or base not in done:
            continue
        found = compared(done[method], done[base])
        if found is None or found.rows is None:
            continue
        met.append(found.rows.low >= FEWER_ROWS)
        line = (
            f"`{method}`: {times(found.rows)} fewer rows a token than without the cache, "
            f"exact match {points(found.gain)}"
        )
        whole = compared(done[method], reference) if reference else None
        if whole is not None and whole.seconds is not None:
            line += (
                f"; against `{REFERENCE}` {times(whole.seconds)} as fast, "
                f"exact match {points(whole.gain)}"
            )
        lines.append(line)
    return Verdict(target, any(met) if met else None, tuple(lines))


def finding(done: Mapping[str, Measured], results: Results) -> Verdict:
    """Some fixed schedule keeps copying and breaks shuffling (arXiv:2510.04767)."""
    target = (
        "independent parallel unmasking collapses on shuffle and not on copy, as in ParallelBench"
    )
    tasks = tasks_of(results.items)
    reference = done.get(REFERENCE)
    met: list[bool] = []
    lines: list[str] = []
    for method, own in done.items():
        spec = read(method)
        is_schedule = spec.method.name == "static" and spec.settings.get("steps", 0) > 0
        if not is_schedule or reference is None or not {"copy", "shuffle"} <= tasks.keys():
            continue
        copy, shuffle = (_on(tasks[name], own, reference) for name in ("copy", "shuffle"))
        before = _share(reference, tasks["shuffle"])
        met.append(
            copy.high >= 0 and shuffle.high < 0 and before + shuffle.value < COLLAPSE * before
        )
        lines.append(
            f"`{method}`: copy {points(copy)}, shuffle {points(shuffle)}; all tasks with one "
            f"right answer {points(_on(_kind(tasks, False), own, reference))}, all with several "
            f"{points(_on(_kind(tasks, True), own, reference))}"
        )
    return Verdict(target, any(met) if met else None, tuple(lines))


def is_lossless(found: Interval) -> bool:
    """No loss within the 95 % interval, and an interval narrow enough to say so."""
    return found.high >= 0 and found.low > -MARGIN


def _against_reference(done: Mapping[str, Measured]) -> dict[str, Comparison]:
    if REFERENCE not in done:
        return {}
    found = {
        method: compared(own, done[REFERENCE])
        for method, own in done.items()
        if read(method).method.name != REFERENCE
    }
    return {method: each for method, each in found.items() if each is not None}


def _kind(tasks: Mapping[str, set[str]], free: bool) -> set[str]:
    """Ids of all items of the tasks with several right answers, or of the others."""
    return {item for task, ids in tasks.items() if BY_NAME[task].free == free for item in ids}


def _on(ids: set[str], one: Measured, other: Measured) -> Interval:
    return gain([(one.answers[item].right, other.answers[item].right) for item in sorted(ids)])


def _share(one: Measured, ids: set[str]) -> float:
    return sum(one.answers[item].right for item in ids) / len(ids)
