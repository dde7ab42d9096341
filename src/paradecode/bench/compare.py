"""Two results side by side: what changed, engine by engine, on what both measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paradecode.bench.figures import Figures, figures, smallest_batch
from paradecode.bench.markdown import number, spread
from paradecode.bench.results import Results
from paradecode.bench.statistics import Interval
from paradecode.bench.summary import collapse, paired_speed
from paradecode.core.errors import InvalidInput

HEAD = ("method", "tok/s before", "tok/s now", "x as fast", "same output", "acceptance length",
        "kept of plain")  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One engine or decoder in both results, on the same inputs.

    Attributes:
        speed: decode speed now over before, paired by input.
        same, items: outputs that are equal token by token.
    """

    name: str
    before: Figures
    now: Figures
    speed: Interval | None
    same: int
    items: int


def changes(before: Results, now: Results) -> list[Change]:
    """Every engine that both results have, in the order of ``now``.

    Raises:
        InvalidInput: nothing can be compared.
    """
    known = {(i.id, i.group, i.prompt_tokens, i.max_tokens) for i in before.items}
    shared = {i.id for i in now.items if (i.id, i.group, i.prompt_tokens, i.max_tokens) in known}
    old, new = (_only(smallest_batch(results), shared) for results in (before, now))
    old_figures, new_figures = ({f.name: f for f in figures(results)} for results in (old, new))
    found = []
    for name, figure in new_figures.items():
        if name not in old_figures:
            continue
        mine, theirs = collapse(new, name), collapse(old, name)
        both = [item for item in mine if item in theirs]
        if both:
            same = sum(mine[item].output == theirs[item].output for item in both)
            speed = paired_speed(list(mine.values()), theirs)
            found.append(Change(name, old_figures[name], figure, speed, same, len(both)))
    if not found:
        fix = "give results with engines and inputs in common"
        raise InvalidInput("results", [before.model, now.model], fix)
    return found


def rows(found: list[Change]) -> list[tuple[str, ...]]:
    """Cells under HEAD; two figures where there are two are those before and now."""
    return [
        (
            change.name, *(_speed(each) for each in (change.before, change.now)),
            spread(change.speed), f"{change.same}/{change.items}",
            _both(*(_length(each) for each in (change.before, change.now))),
            _both(*(_kept(each) for each in (change.before, change.now))),
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


def _both(before: str, now: str) -> str:
    return f"{before} -> {now}" if before or now else ""
