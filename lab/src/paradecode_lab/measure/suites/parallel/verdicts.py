"""Decides whether the targets of parallel decoding are met, missed or not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from paradecode_lab.measure.results import Results
from paradecode_lab.measure.statistics import Interval, gain
from paradecode_lab.measure.suites.parallel.methods import (
    REFERENCE,
    cache_of,
    plain_of,
    read,
    without_cache,
)
from paradecode_lab.measure.suites.parallel.summary import (
    MethodRecords,
    compared,
    measured,
    tasks_of,
)
from paradecode_lab.measure.tables import points, times
from paradecode_lab.measure.tasks.tasks import BY_NAME

POLICIES, FEWER_FORWARDS = 3, 4.0
FEWER_DRAFTED_FORWARDS = 1.5
FEWER_ROWS = 2.0
MARGIN = 0.02
"""The interval of the exact match must exclude a loss of this size.

Without this margin a run of few instances, whose intervals are wide, would find no loss in any
method.
"""
COLLAPSE = 0.5
"""A task has collapsed if its exact match is below this share of the reference's."""

Done = Mapping[str, MethodRecords]
Finding = tuple[bool, str]
"""A pair: whether a method meets the target, and its figures as a sentence."""


@dataclass(frozen=True)
class TargetVerdict:
    """A target, whether it is met (None: not measured), and the figures that decide it."""

    target: str
    met: bool | None
    evidence: tuple[str, ...]

    @property
    def word(self) -> str:
        return {True: "met", False: "missed", None: "not measured"}[self.met]


def verdicts(results: Results) -> list[TargetVerdict]:
    """Decide on the three targets, and on whether the finding of ParallelBench shows."""
    done = measured(results)
    return [
        _policies(done),
        _verdict(
            f"`freedave` cuts forwards by {FEWER_DRAFTED_FORWARDS:g}x with identical output",
            _drafted(done),
        ),
        _verdict(
            f"prefix or dual caches cut computed rows by {FEWER_ROWS:g}x, with measured loss",
            _caches(done),
        ),
        _verdict(
            "independent parallel unmasking collapses on shuffle and not on copy, as in "
            "ParallelBench",
            _collapses(done, tasks_of(results.items)),
        ),
    ]


def is_lossless(found: Interval) -> bool:
    """Decide whether the 95 % interval contains 0 or a gain, and is narrow enough for a verdict."""
    return found.high >= 0 and found.low > -MARGIN


def _verdict(target: str, findings: Iterable[Finding]) -> TargetVerdict:
    """Return the verdict on a target, which is met if one method meets it."""
    found = list(findings)
    met = any(right for right, _ in found) if found else None
    return TargetVerdict(target, met, tuple(line for _, line in found))


def _policies(done: Done) -> TargetVerdict:
    """Decide whether enough policies beside ``static`` save forwards without a loss."""
    reference = done.get(REFERENCE)
    others = [method for method in done if read(method).method.name != REFERENCE]
    best: dict[str, tuple[float, str]] = {}
    for method in others if reference else ():
        found = compared(done[method], reference) if reference else None
        if found is None or found.forwards is None:
            continue
        if found.forwards.low < FEWER_FORWARDS or not is_lossless(found.gain):
            continue
        line = (
            f"`{method}`: {times(found.forwards)} fewer, exact match {points(found.gain)}; of "
            f"those that decide a token of the output {times(found.deciding)} fewer"
        )
        name = read(method).method.name
        best[name] = max(best.get(name, (0.0, "")), (found.forwards.value, line))
    return TargetVerdict(
        f"at least {POLICIES} policies cut forwards a token by {FEWER_FORWARDS:g}x or more "
        f"at no loss of exact match",
        len(best) >= POLICIES if reference and others else None,
        tuple(line for _, line in sorted(best.values(), reverse=True)),
    )


def _drafted(done: Done) -> Iterator[Finding]:
    """Decide whether FreeDave saves forwards against plain decoding in the same blocks.

    Its outputs must be identical.
    """
    for method in done:
        plain = plain_of(method)
        if read(method).method.name != "freedave" or cache_of(method) != "none":
            continue
        found = compared(done[method], done[plain]) if plain in done else None
        if found is None or found.forwards is None:
            continue
        same = found.identical == found.items
        yield (
            same and found.forwards.low >= FEWER_DRAFTED_FORWARDS,
            f"`{method}`: {times(found.forwards)} fewer than `{plain}`, "
            f"{found.identical} of {found.items} outputs identical",
        )


def _caches(done: Done) -> Iterator[Finding]:
    """Decide whether a prefix or dual cache saves rows against the same method without a cache."""
    reference = done.get(REFERENCE)
    for method in done:
        base = without_cache(method)
        if cache_of(method) not in ("prefix", "dual") or base not in done:
            continue
        found = compared(done[method], done[base])
        if found is None or found.rows is None:
            continue
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
        yield found.rows.low >= FEWER_ROWS, line


def _collapses(done: Done, tasks: Mapping[str, set[str]]) -> Iterator[Finding]:
    """Decide whether some fixed schedule keeps copying but breaks shuffling (arXiv:2510.04767)."""
    reference = done.get(REFERENCE)
    if reference is None or not {"copy", "shuffle"} <= tasks.keys():
        return
    one_answer, several = (
        {item for task, ids in tasks.items() if BY_NAME[task].free == free for item in ids}
        for free in (False, True)
    )
    right = sum(bool(reference.answers[item].right) for item in tasks["shuffle"])
    before = right / len(tasks["shuffle"])
    for method, own in done.items():
        spec = read(method)
        if spec.method.name != "static" or not spec.settings.get("steps", 0) > 0:
            continue
        copy, shuffle, certain, free = (
            _gain(ids, own, reference)
            for ids in (tasks["copy"], tasks["shuffle"], one_answer, several)
        )
        yield (
            copy.high >= 0 and shuffle.high < 0 and before + shuffle.value < COLLAPSE * before,
            f"`{method}`: copy {points(copy)}, shuffle {points(shuffle)}; all tasks with one "
            f"right answer {points(certain)}, all with several {points(free)}",
        )


def _gain(ids: set[str], one: MethodRecords, other: MethodRecords) -> Interval:
    return gain([(bool(one.answers[i].right), bool(other.answers[i].right)) for i in sorted(ids)])
