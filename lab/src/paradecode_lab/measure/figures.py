"""Computes the figures of each engine or decoder: speed, equality, quality, acceptance and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from statistics import fmean
from typing import Any

from paradecode.methods.choice import PLAIN_DECODERS
from paradecode.timing.doubts import is_suspicious, verifies
from paradecode_lab.measure.results import Counts, EngineInfo, Record, Results, Score, groups_of
from paradecode_lab.measure.speeds import Measured, Speed, collapse, first_difference, speed
from paradecode_lab.measure.statistics import (
    Interval,
    difference_of_ratios,
    gain,
    interval,
    one_plus_ratio,
    ratio,
    ratio_of_ratios,
    wilson,
)

PARTS = ("target", "draft", "verify", "sample", "other")
"""The shares of the decode time; see :class:`paradecode_lab.measure.results.Counts`."""


@dataclass(frozen=True)
class Agreement:
    """Compares the outputs of a speculative mode with those of the same engine's plain mode.

    Attributes:
        items: number of items that both modes finished.
        identical: number of items with equal outputs.
        first_differences: indices of the first token that differs, in ascending order.
    """

    items: int
    identical: int
    first_differences: tuple[int, ...]


@dataclass(frozen=True)
class OutputEquality:
    """Compares the outputs of all rounds and batch sizes with the outputs of the reference.

    Attributes:
        same: number of outputs that are equal token by token.
        outputs: number of all compared outputs.
        kept: share of the tokens that come before the first difference.
        differing: (item, batch size, index of the first token that differs) for each output that is
            not equal.
    """

    same: int
    outputs: int
    kept: Interval | None
    differing: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Accuracy:
    """The number of right answers among the checkable ones.

    Attributes:
        right, checked: number of right answers, and of all checked answers.
        share: the share of right answers.
        gain: this share minus the reference's, paired answer by answer; None without a reference.
    """

    right: int
    checked: int
    share: Interval
    gain: Interval | None


@dataclass(frozen=True)
class TokenCost:
    """The cost of tokens, as the engine counts it. The prompt's forward counts for its output.

    Attributes:
        acceptance_length: 1 + accepted draft tokens / drafts.
        per_position: the share of drafts whose token at depth 1, 2, ... was accepted.
        per_forward: output tokens per target forward.
        draft_forwards, rows: forwards that only drafted, and rows of all target forwards, per
            output token.
        milliseconds: decode time per token, divided into ``PARTS``.
    """

    acceptance_length: Interval | None
    per_position: tuple[float, ...]
    per_forward: float
    draft_forwards: float
    rows: float
    milliseconds: Mapping[str, float]


@dataclass(frozen=True)
class Throughput:
    """Output tokens a second of whole batches, including the prompts' time.

    Attributes:
        over: ``speed`` over the reference's; None without a reference.
    """

    speed: Interval
    over: Interval | None


@dataclass(frozen=True)
class Figures:
    """Everything that tables and charts show of one decoder or engine.

    Speeds are measured at the smallest batch size, where other requests slow a decoder least.

    Attributes:
        groups: group of prompts -> speed.
        nll, agreed: mean negative log-likelihood of a token under an oracle (the model itself, or a
            float32 forward of the same weights), and the share of tokens that are the oracle's
            argmax; None if an output was not scored.
        lossless: comparison of the first round with the plain mode's; ``equality`` compares all
            rounds.
        repeatable: number of items whose output was the same in every round.
        disturbed: share of items without a single undisturbed round.
        verdict: if the tokens of plain decoding were promised, ``exact`` or ``broken``; ``law`` if
            their distribution was promised; ``lossy``; or empty if nothing was promised.
        own_choice: ``agreed``, counted over the outputs that were scored.
        nll_gap: mean negative log-likelihood of a token minus the reference's, paired by item.
        sweep: batch size -> throughput.
        suspicious: whether the speed-up is larger than the saved forwards can explain.
    """

    engine: EngineInfo
    total: Speed
    groups: dict[str, Speed]
    nll: float | None
    agreed: float | None
    lossless: Agreement | None
    repeatable: int
    disturbed: float
    verdict: str
    equality: OutputEquality | None
    accuracy: Accuracy | None
    own_choice: Interval | None
    nll_gap: Interval | None
    cost: TokenCost | None
    sweep: Mapping[int, Throughput]
    suspicious: bool

    @property
    def name(self) -> str:
        return self.engine.name


def figures(results: Results, baseline: str | None = None) -> list[Figures]:
    """Compute the figures of each engine that produced an output, in the order of ``results``.

    Args:
        baseline: the engine that speed-ups refer to; None takes the plain mode that all engines
            refer to, if there is one.
    """
    baseline = baseline or usual_baseline(results)
    alone = smallest_batch(results)
    measured = {engine.name: collapse(alone, engine.name) for engine in results.engines}
    return [
        _figures(engine, results, alone, measured, baseline or "")
        for engine in results.engines
        if measured[engine.name]
    ]


def aggregates(found: Sequence[Figures], baseline: str | None) -> dict[str, Any]:
    """Return the figures that are written into result files, where other programs read them."""
    names = ("total", "groups", "nll", "agreed", "lossless", "repeatable", "disturbed",
             "suspicious")  # fmt: skip
    entries = [
        {
            "engine": each.name,
            "tokens_a_forward": each.cost.per_forward if each.cost else None,
            **{name: own[name] for name in names},
        }
        for each, own in zip(found, map(asdict, found))
    ]
    return {"baseline": baseline, "engines": entries}


def usual_baseline(results: Results) -> str | None:
    """Return the plain mode that all other engines refer to; None if there is none, or several."""
    named = {engine.reference for engine in results.engines if engine.reference}
    return named.pop() if len(named) == 1 else None


def smallest_batch(results: Results) -> Results:
    """Return the results of the smallest batch size, where other requests slow a decoder least."""
    return of_batch(results, min((record.batch for record in results.records), default=1))


def of_batch(results: Results, size: int) -> Results:
    """Return the results with only the records of batches of ``size`` requests."""
    return replace(results, records=tuple(r for r in results.records if r.batch == size))


def _figures(
    engine: EngineInfo,
    results: Results,
    alone: Results,
    measured: Mapping[str, Mapping[str, Measured]],
    baseline: str,
) -> Figures:
    mine, theirs = measured[engine.name], measured.get(engine.reference or "", {})
    own, plain = (_of(results, name) for name in (engine.name, engine.reference or engine.name))
    first, other = (_of(alone, name) for name in (engine.name, engine.reference or ""))
    counts = [(r, r.counts) for r in first if r.counts is not None]
    equality = _equality(own, plain) if engine.guarantee or engine.reference else None
    scores, others = (_scored(each, results) for each in (mine, theirs))
    tokens = sum(score.tokens for score in scores.values())
    scored = tokens > 0 and len(scores) == len(mine)
    base = measured.get(baseline, {})
    total = speed(list(mine.values()), base)
    return Figures(
        engine=engine,
        total=total,
        groups={
            group: speed([m for m in mine.values() if m.item.group == group], base)
            for group in groups_of(results)
        },
        nll=sum(score.nll for score in scores.values()) / tokens if scored else None,
        agreed=sum(score.agreed for score in scores.values()) / tokens if scored else None,
        lossless=_agreement(mine, theirs) if theirs else None,
        repeatable=sum(m.repeatable for m in mine.values()),
        disturbed=fmean(m.disturbed for m in mine.values()),
        verdict=_verdict(engine.guarantee, equality, results.settings.get("temperature") == 0),
        equality=equality,
        accuracy=_accuracy(first, other),
        own_choice=interval([(s.agreed, s.tokens) for s in scores.values()], ratio, list(scores)),
        nll_gap=_nll_gap(scores, others),
        cost=_cost(counts) if counts else None,
        sweep=_sweep(own, plain if engine.reference else []),
        suspicious=baseline == engine.reference and _is_suspicious(engine, total, counts),
    )


def _is_suspicious(
    engine: EngineInfo, total: Speed, counted: Sequence[tuple[Record, Counts]]
) -> bool:
    """Decide whether a speed-up over plain decoding exceeds what saved forwards can explain.

    Only methods that verify drafts of one request at a time are judged.
    """
    if engine.reference != PLAIN_DECODERS["autoregressive"] or total.speedup is None:
        return False
    if any(record.batch > 1 for record, _ in counted):
        return False
    if not verifies(engine.name, engine.guarantee):
        return False
    later = sum(len(record.token_ids) - record.first_tokens for record, _ in counted)
    # The first forward is the prompt's, which does not count.
    forwards = sum(counts.forwards - 1 for _, counts in counted)
    return is_suspicious(total.speedup.low, later, forwards)


def _verdict(promised: str, equality: OutputEquality | None, greedy: bool) -> str:
    """Return the verdict on the outputs; see :class:`Figures`.

    At temperature 0 only one output has the promised distribution, so its equality is checked too.
    """
    if promised not in ("exact", "distribution"):
        return promised
    if promised == "distribution" and not greedy:
        return "law"
    equal = equality is None or equality.same == equality.outputs
    return "exact" if equal else "broken"


def _of(results: Results, engine: str) -> list[Record]:
    return [r for r in results.records if r.engine == engine and not r.error and r.token_ids]


def _equality(own: Sequence[Record], plain: Sequence[Record]) -> OutputEquality | None:
    """Compare all outputs with the reference's first output of the same item.

    The first output is the one of the smallest batch size in the first round.
    """
    first: dict[str, Record] = {}
    for record in sorted(plain, key=lambda r: (r.batch, r.round)):
        first.setdefault(record.item, record)
    differing, kept = [], []
    compared = [record for record in own if record.item in first]
    for record in compared:
        other = first[record.item].token_ids
        at = first_difference(record.token_ids, other)
        longest = max(len(record.token_ids), len(other))
        kept.append((longest if at is None else at, longest))
        if at is not None:
            differing.append((record.item, record.batch, at))
    if not compared:
        return None
    share = interval(kept, ratio, [record.item for record in compared])
    same = len(compared) - len(differing)
    return OutputEquality(same, len(compared), share, tuple(differing))


def _accuracy(own: Sequence[Record], plain: Sequence[Record]) -> Accuracy | None:
    mine, theirs = (
        {r.item: r.right for r in records if r.right is not None and r.round == 0}
        for records in (own, plain)
    )
    if not mine:
        return None
    pairs = [(right, theirs[item]) for item, right in mine.items() if item in theirs]
    right = sum(mine.values())
    return Accuracy(right, len(mine), wilson(right, len(mine)), gain(pairs) if pairs else None)


def _agreement(own: Mapping[str, Measured], plain: Mapping[str, Measured]) -> Agreement:
    both = [(m.output, plain[item].output) for item, m in own.items() if item in plain]
    found = [first_difference(*outputs) for outputs in both]
    differences = sorted(at for at in found if at is not None)
    return Agreement(len(both), len(both) - len(differences), tuple(differences))


def _scored(own: Mapping[str, Measured], results: Results) -> dict[str, Score]:
    """Return a mapping from each item to the oracle's score of its output."""
    found = {item: results.scores.get((item, m.output)) for item, m in own.items()}
    return {item: score for item, score in found.items() if score is not None}


def _nll_gap(mine: Mapping[str, Score], theirs: Mapping[str, Score]) -> Interval | None:
    pairs = [(mine[item], theirs[item]) for item in mine if item in theirs]
    rows = [(a.nll, a.tokens, b.nll, b.tokens) for a, b in pairs]
    return interval(rows, difference_of_ratios)


def _cost(counted: Sequence[tuple[Record, Counts]]) -> TokenCost:
    records, counts = [r for r, _ in counted], [c for _, c in counted]
    tokens = max(1, sum(len(record.token_ids) for record in records))
    later = max(1, sum(len(record.token_ids) - record.first_tokens for record in records))
    drafts = sum(c.drafts for c in counts)
    kept = zip_longest(*(c.accepted_per_position for c in counts), fillvalue=0)
    accepted = [(c.accepted, c.drafts) for c in counts]
    return TokenCost(
        acceptance_length=interval(accepted, one_plus_ratio, [r.item for r in records]),
        per_position=tuple(sum(depth) / drafts for depth in kept) if drafts else (),
        per_forward=tokens / max(1, sum(c.forwards for c in counts)),
        draft_forwards=sum(c.draft_forwards for c in counts) / tokens,
        rows=sum(c.rows for c in counts) / tokens,
        milliseconds={part: 1000 * sum(getattr(c, part) for c in counts) / later for part in PARTS},
    )


def _sweep(own: Sequence[Record], plain: Sequence[Record]) -> dict[int, Throughput]:
    found = {}
    for batch in sorted({record.batch for record in own if record.wall_seconds > 0}):
        mine, theirs = (
            {(r.item, r.round): r for r in records if r.batch == batch} for records in (own, plain)
        )
        spent = [(len(r.token_ids), r.wall_seconds) for r in mine.values()]
        speed = interval(spent, ratio, [str(r.unit) for r in mine.values()])
        both = [(r, theirs[key]) for key, r in mine.items() if key in theirs]
        rows = [
            (len(a.token_ids), a.wall_seconds, len(b.token_ids), b.wall_seconds) for a, b in both
        ]
        over = interval(rows, ratio_of_ratios, [str(a.unit) for a, _ in both])
        if speed is not None:
            found[batch] = Throughput(speed, over)
    return found
