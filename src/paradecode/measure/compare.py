"""Two results side by side: what changed, engine by engine, on what both measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paradecode.core.errors import InvalidInput
from paradecode.measure.figures import Figures, figures, smallest_batch, usual_baseline
from paradecode.measure.results import Results
from paradecode.measure.statistics import Interval
from paradecode.measure.summary import collapse, paired_speed
from paradecode.measure.tables import number, spread

HEAD = ("method", "tok/s before", "tok/s now", "x as fast", "same output", "acceptance length",
        "kept of plain")  # fmt: skip
REPEATED = ("x {} before", "x {} now", "repeats")
"""Further columns where both have the same baseline: ratios are what another machine can repeat."""


@dataclass(frozen=True)
class Change:
    """One engine or decoder in both results, on the same inputs.

    Attributes:
        speed: decode speed now over before, paired by input.
        same, items: outputs that are equal token by token.
        over: decode speed over the baseline's in each of the two, where both measured it.
    """

    name: str
    before: Figures
    now: Figures
    speed: Interval | None
    same: int
    items: int
    over: tuple[Interval, Interval] | None = None

    @property
    def repeats(self) -> bool | None:
        """Whether the two ratios over the baseline have intervals that overlap."""
        if self.over is None:
            return None
        before, now = self.over
        return before.low <= now.high and now.low <= before.high


def common_baseline(before: Results, now: Results, named: str | None) -> str | None:
    """What speed-ups of both refer to: the engine named, or the plain mode that both refer to.

    Raises:
        InvalidInput: the named engine is not in both.
    """
    if named is None:
        usual = usual_baseline(before)
        return usual if usual == usual_baseline(now) else None
    both = [e.name for e in now.engines if e.name in {b.name for b in before.engines}]
    if named not in both:
        raise InvalidInput("baseline", named, f"both results have {', '.join(both) or 'none'}")
    return named


def changes(before: Results, now: Results, baseline: str | None = None) -> list[Change]:
    """Every engine that both results have, in the order of ``now``.

    Args:
        baseline: from :func:`common_baseline`.

    Raises:
        InvalidInput: nothing can be compared.
    """
    known = {(i.id, i.group, i.prompt_tokens, i.max_tokens) for i in before.items}
    shared = {i.id for i in now.items if (i.id, i.group, i.prompt_tokens, i.max_tokens) in known}
    old, new = (_only(smallest_batch(results), shared) for results in (before, now))
    old_figures, new_figures = (
        {f.name: f for f in figures(results, baseline)} for results in (old, new)
    )
    found = []
    for name, figure in new_figures.items():
        if name not in old_figures:
            continue
        mine, theirs = collapse(new, name), collapse(old, name)
        both = [item for item in mine if item in theirs]
        if both:
            same = sum(mine[item].output == theirs[item].output for item in both)
            speed = paired_speed(list(mine.values()), theirs)
            ratios = [each.summary.total.speedup for each in (old_figures[name], figure)]
            over = (ratios[0], ratios[1]) if baseline and ratios[0] and ratios[1] else None
            found.append(Change(name, old_figures[name], figure, speed, same, len(both), over))
    if not found:
        fix = "give results with engines and inputs in common"
        raise InvalidInput("results", [before.model, now.model], fix)
    return found


def head(baseline: str | None) -> tuple[str, ...]:
    """Column names of :func:`rows`."""
    return (*HEAD, *(name.format(baseline) for name in REPEATED)) if baseline else HEAD


def rows(found: list[Change], baseline: str | None = None) -> list[tuple[str, ...]]:
    """Cells under :func:`head`; two figures where there are two are those before and now."""
    return [
        (
            change.name, *(_speed(each) for each in (change.before, change.now)),
            spread(change.speed), f"{change.same}/{change.items}",
            _both(*(_length(each) for each in (change.before, change.now))),
            _both(*(_kept(each) for each in (change.before, change.now))),
            *(_repeated(change) if baseline else ()),
        )
        for change in found
    ]  # fmt: skip


def warnings(before: Results, now: Results) -> list[str]:
    """What makes the comparison one of other things than code."""
    found = []
    for name in ("cpu", "cores", "isa"):
        old, new = getattr(before.machine, name), getattr(now.machine, name)
        if old != new:
            found.append(f"machine.{name} was {old}, now {new}")
    for name in ("threads", "temperature", "weights", "backend", "dtype", "device"):
        old, new = (results.settings.get(name) for results in (before, now))
        if old != new:
            found.append(f"settings.{name} was {old}, now {new}")
    if before.model != now.model:
        found.append(f"model was {before.model}, now {now.model}")
    return found


def _only(results: Results, ids: set[str]) -> Results:
    return replace(
        results,
        items=tuple(item for item in results.items if item.id in ids),
        records=tuple(record for record in results.records if record.item in ids),
    )


def _speed(each: Figures) -> str:
    decode = each.summary.total.decode
    return number(decode.value) if decode else "-"


def _length(each: Figures) -> str:
    found = each.cost.acceptance_length if each.cost else None
    return number(found.value) if found else ""


def _kept(each: Figures) -> str:
    kept = each.equality.kept if each.equality else None
    return f"{100 * kept.value:.1f} %" if kept else ""


def _repeated(change: Change) -> tuple[str, str, str]:
    if change.over is None:
        return "", "", ""
    before, now = change.over
    return spread(before), spread(now), "yes" if change.repeats else "no"


def _both(before: str, now: str) -> str:
    return f"{before} -> {now}" if before or now else ""
