"""From records to speeds: medians over rounds, and totals over prompts with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from paradecode.timing.other_load import QUIET
from paradecode_lab.measure.results import ItemInfo, Record, Results
from paradecode_lab.measure.statistics import Interval, interval, ratio, ratio_of_ratios


@dataclass(frozen=True)
class Measured:
    """One engine on one item over all rounds: the output of the first round, and median times."""

    item: ItemInfo
    output: tuple[int, ...]
    repeatable: bool
    tokens: float
    later_tokens: float
    prefill_seconds: float
    decode_seconds: float
    disturbed: bool


@dataclass(frozen=True)
class Speed:
    """Figures of one engine on some items.

    Attributes:
        items, prompts: their numbers; turns of one conversation are one prompt.
        tokens: mean length of an output.
        decode: tokens a second after the first ones.
        overall: tokens a second, with the prompt's time.
        prefill: prompt tokens a second.
        first_token: mean seconds to the first token.
        speedup: ``decode`` over the baseline's, on the items that both finished.
    """

    items: int
    prompts: int
    tokens: float
    decode: Interval | None
    overall: Interval | None
    prefill: Interval | None
    first_token: Interval | None
    speedup: Interval | None


def collapse(results: Results, engine: str) -> dict[str, Measured]:
    """The items of one engine, by id. Undisturbed rounds are preferred where there is one."""
    rounds: dict[str, list[Record]] = {}
    for record in results.records:
        if record.engine == engine and not record.error and record.token_ids:
            rounds.setdefault(record.item, []).append(record)
    return {
        item.id: _collapse(item, rounds[item.id]) for item in results.items if item.id in rounds
    }


def _collapse(item: ItemInfo, records: Sequence[Record]) -> Measured:
    quiet = [r for r in records if r.other_load is None or r.other_load <= QUIET]
    used = quiet or records
    later = [len(r.token_ids) - r.first_tokens for r in used]
    # Seconds a token times mean tokens: the median seconds when all rounds gave the same output.
    pace = [r.decode_seconds / n for r, n in zip(used, later) if n > 0]
    return Measured(
        item=item,
        output=records[0].token_ids,
        repeatable=len({r.token_ids for r in records}) == 1,
        tokens=fmean(len(r.token_ids) for r in used),
        later_tokens=max(fmean(later), 0.0),
        prefill_seconds=median(r.prefill_seconds for r in used),
        decode_seconds=median(pace) * max(fmean(later), 0.0) if pace else 0.0,
        disturbed=not quiet,
    )


def speed(own: Sequence[Measured], base: Mapping[str, Measured]) -> Speed:
    """Figures of some items; ``base`` is the baseline, by item."""
    prompts = [m.item.prompt for m in own]
    whole = [(m.tokens, m.prefill_seconds + m.decode_seconds) for m in own]
    return Speed(
        items=len(own),
        prompts=len(set(prompts)),
        tokens=fmean(m.tokens for m in own) if own else 0.0,
        decode=interval([(m.later_tokens, m.decode_seconds) for m in own], ratio, prompts),
        overall=interval(whole, ratio, prompts),
        prefill=interval([(m.item.prompt_tokens, m.prefill_seconds) for m in own], ratio, prompts),
        first_token=interval([(m.prefill_seconds, 1.0) for m in own], ratio, prompts),
        speedup=paired_speed(own, base),
    )


def paired_speed(own: Sequence[Measured], base: Mapping[str, Measured]) -> Interval | None:
    """Decode speed over another engine's, on the items that both finished."""
    pairs = [(m, base[m.item.id]) for m in own if m.item.id in base]
    rows = [(m.later_tokens, m.decode_seconds, b.later_tokens, b.decode_seconds) for m, b in pairs]
    return interval(rows, ratio_of_ratios, [m.item.prompt for m, _ in pairs])


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs (or is missing on one side); None when equal."""
    for index, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))
