"""Compares two results: what changed for each engine, on the inputs that both results measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.timing.doubts import SUSPICIOUS, marked
from paradecode_lab.measure.figures import Figures, figures, of_batch, usual_baseline
from paradecode_lab.measure.results import ItemInfo, Results
from paradecode_lab.measure.speeds import collapse, paired_speed
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tables import Column, number, spread, value
from paradecode_lab.measure.too_short import too_short


@dataclass(frozen=True)
class EngineChange:
    """The change of one engine or method between two results, on the inputs that both measured.

    Attributes:
        speed: ratio of decode speeds, now over before, paired by input.
        same: number of outputs that are equal token by token.
        items: number of inputs.
        over: decode speed over the baseline's, before and now; None unless both results have it.
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
        """True if the intervals of the two ratios overlap; None without a baseline."""
        if self.over is None:
            return None
        before, now = self.over
        return before.low <= now.high and now.low <= before.high


def columns(baseline: str | None) -> tuple[Column[EngineChange], ...]:
    """Return the columns of the comparison. A cell with two figures shows the earlier one first.

    Args:
        baseline: name of the engine that is the baseline in both results, or None. Ratios over a
            baseline can be repeated on another machine, speeds cannot.
    """
    own: tuple[Column[EngineChange], ...] = (
        Column("method", lambda c: c.name),
        Column("tok/s before", lambda c: value(c.before.total.decode)),
        Column("tok/s now", lambda c: value(c.now.total.decode)),
        Column("x as fast", lambda c: spread(c.speed)),
        Column("same output", lambda c: f"{c.same}/{c.items}"),
        Column("tokens/forward", _both(_per_forward)),
        Column("acceptance length", _both(_length)),
        Column("kept of plain", _both(_kept)),
    )
    if baseline is None:
        return own
    return (
        *own,
        Column(f"x {baseline} before", lambda c: _over(c, 0)),
        Column(f"x {baseline} now", lambda c: _over(c, 1)),
        Column("repeats", lambda c: {True: "yes", False: "no", None: ""}[c.repeats]),
    )


def common_baseline(before: Results, now: Results, named: str | None) -> str | None:
    """Return the baseline of both results: the named engine, or the plain mode that both refer to.

    Raises:
        InvalidInput: the named engine is missing in one of the results.
    """
    if named is None:
        usual = usual_baseline(before)
        return usual if usual == usual_baseline(now) else None
    both = [e.name for e in now.engines if e.name in {b.name for b in before.engines}]
    if named not in both:
        raise InvalidInput("baseline", named, f"both results have {', '.join(both) or 'none'}")
    return named


def changes(before: Results, now: Results, baseline: str | None = None) -> list[EngineChange]:
    """Return how each engine that both results have changed, in the order of ``now``.

    Speeds are measured at the smallest batch size that both results have.

    Args:
        baseline: from :func:`common_baseline`.

    Raises:
        InvalidInput: the results have no engine, input or batch size in common.
    """
    size = common_batch(before, now)
    old, new = in_common(of_batch(before, size), of_batch(now, size))
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
            ratios = [each.total.speedup for each in (old_figures[name], figure)]
            over = (ratios[0], ratios[1]) if baseline and ratios[0] and ratios[1] else None
            found.append(
                EngineChange(name, old_figures[name], figure, speed, same, len(both), over)
            )
    if not found:
        fix = "give results with engines and inputs in common"
        raise InvalidInput("results", [before.model, now.model], fix)
    return found


def doubts(changes: Sequence[EngineChange]) -> list[str]:
    """Return reasons to doubt the ratios: impossible ratios, and too few inputs in common."""
    both = [figures for change in changes for figures in (change.before, change.now)]
    found = [SUSPICIOUS] if any(each.suspicious for each in both) else []
    now = max((change.now.total for change in changes), key=lambda total: total.prompts)
    ratios = {change.name: change.speed for change in changes}
    short = too_short(now.prompts, now.tokens, ratios)
    return [*found, short] if short else found


def common_batch(before: Results, now: Results) -> int:
    """Return the smallest batch size that both results have.

    Raises:
        InvalidInput: the results have no batch size in common.
    """
    old, new = _batches(before), _batches(now)
    if not old & new:
        fix = "speeds of batches of different sizes say nothing of the code: measure with --batch"
        raise InvalidInput("batch", [sorted(old), sorted(new)], f"{fix} {min(old, default=1)}")
    return min(old & new)


def in_common(before: Results, now: Results) -> tuple[Results, Results]:
    """Return both results with only the inputs that are equal in both."""
    known = {item.id: item for item in before.items}
    ids = {item.id for item in now.items if item.id in known and _is_same(item, known[item.id])}

    def only(results: Results) -> Results:
        return replace(
            results,
            items=tuple(item for item in results.items if item.id in ids),
            records=tuple(record for record in results.records if record.item in ids),
        )

    return only(before), only(now)


def warnings(before: Results, now: Results) -> list[str]:
    """Return a warning for each machine, setting or model that differs between the results."""
    old, new = _conditions(before), _conditions(now)
    other = [f"{name} was {old[name]}, now {new[name]}" for name in old if old[name] != new[name]]
    if now.is_parallel or _batches(before) == _batches(now):
        return other
    sizes = [" and ".join(map(str, sorted(_batches(each)))) for each in (before, now)]
    compared = f"compared are batches of {common_batch(before, now)}"
    return [*other, f"batch sizes were {sizes[0]}, now {sizes[1]}: {compared}"]


def _batches(results: Results) -> set[int]:
    return {record.batch for record in results.records if not record.error}


def _conditions(results: Results) -> dict[str, Any]:
    settings = ("threads", "temperature", "weights", "backend", "dtype", "device", "batch")
    return {
        **{f"machine.{name}": getattr(results.machine, name) for name in ("cpu", "cores", "isa")},
        **{f"settings.{name}": results.settings.get(name) for name in settings},
        "model": results.model,
    }


def _is_same(one: ItemInfo, other: ItemInfo) -> bool:
    """Decide whether two inputs are equal.

    The names of their conversations may differ. Early results of the suite ``parallel`` have no
    prompt lengths, which then are not compared.
    """
    lengths = {one.prompt_tokens, other.prompt_tokens} - {0}
    one, other = (replace(item, prompt="", prompt_tokens=0) for item in (one, other))
    return one == other and len(lengths) < 2


def _both(figure: Callable[[Figures], str]) -> Callable[[EngineChange], str]:
    def cell(change: EngineChange) -> str:
        before, now = figure(change.before), figure(change.now)
        return f"{before} -> {now}" if before or now else ""

    return cell


def _over(change: EngineChange, which: int) -> str:
    figures = (change.before, change.now)[which]
    return marked(spread(change.over[which]), figures.suspicious) if change.over else ""


def _per_forward(each: Figures) -> str:
    return number(each.cost.per_forward) if each.cost else ""


def _length(each: Figures) -> str:
    return value(each.cost.acceptance_length if each.cost else None, absent="")


def _kept(each: Figures) -> str:
    kept = each.equality.kept if each.equality else None
    return f"{100 * kept.value:.1f} %" if kept else ""
