"""Computes speeds from records: medians over rounds, then totals over prompts with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from paradecode.timing.other_load import QUIET
from paradecode_lab.measure.results import ItemInfo, Record, Results
from paradecode_lab.measure.statistics import Interval, interval, ratio, ratio_of_ratios


@dataclass(frozen=True)
class Measured:
    """One engine's measurements of one item, combined over all rounds.

    Attributes:
        output: the output of the first round.
        repeatable: whether all rounds gave the same output.
        tokens, later_tokens: mean numbers of all output tokens, and of those after the first ones.
        prefill_seconds, decode_seconds: median times.
        disturbed: whether other processes disturbed every round.
    """

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
    """The speed of one engine on some items.

    Attributes:
        items, prompts: number of items and of prompts; the turns of one conversation are one
            prompt.
        tokens: mean number of tokens of an output.
        decode: tokens a second, without the first tokens and the prefill's time.
        overall: tokens a second, including the prefill's time.
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
    """Combine the rounds of each item of one engine; returns them by the item's id.

    Rounds that other processes disturbed count only if an item has no undisturbed round.
    """
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
    # Seconds per token times mean tokens equal the median seconds if all rounds gave the same
    # output.
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
    """Compute the speed on the items in ``own``; ``base`` has the baseline's times by item."""
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
    """Return the decode speed over another engine's, on the items that both finished."""
    pairs = [(m, base[m.item.id]) for m in own if m.item.id in base]
    rows = [(m.later_tokens, m.decode_seconds, b.later_tokens, b.decode_seconds) for m, b in pairs]
    return interval(rows, ratio_of_ratios, [m.item.prompt for m, _ in pairs])


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the index of the first token that differs; None if both sequences are equal.

    If one sequence is the beginning of the other, this index is its length.
    """
    for index, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))
