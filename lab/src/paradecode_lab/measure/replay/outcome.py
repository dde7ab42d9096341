"""The results of a method on a recorded workload, as data that can be pickled, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from paradecode_lab.measure.statistics import Interval, interval, ratio_of_ratios
from paradecode_lab.measure.tables import ends
from paradecode_lab.measure.too_short import ENOUGH_OF_A_GROUP, too_short


@dataclass(frozen=True)
class Drafted:
    """One commit.

    Attributes:
        tokens: number of verified draft tokens.
        depth: depth of the draft tree.
        accepted: number of accepted draft tokens.
    """

    tokens: int
    depth: int
    accepted: int


@dataclass(frozen=True)
class Played:
    """One replayed request. All values but the seconds of Python are equal in every replay.

    Attributes:
        generated: number of output tokens.
        later: number of tokens after the first commit; the speed counts only these tokens and their
            time.
        steps: one entry for each commit.
        forward_seconds: predicted time of the forwards after the first commit, by the cost curve
            and the recorded timing.
        python_seconds: predicted time of all other work of these steps, in the engine and the
            method.
        drafter_seconds: measured time of the method's own Python code, in all steps.
    """

    id: str
    group: str
    generated: int
    later: int
    forwards: int
    steps: tuple[Drafted, ...]
    forward_seconds: float
    python_seconds: float
    drafter_seconds: float

    @property
    def spent(self) -> tuple[float, float]:
        """Number of tokens after the first commit, and their predicted seconds."""
        return self.later, self.forward_seconds + self.python_seconds


SUMS = (
    "generated", "later", "forwards", "forward_seconds", "python_seconds", "drafter_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """Sums over requests.

    ``accepted_at`` and ``drafted_at`` count drafts by depth, from 1: drafts whose token at that
    depth was accepted, and drafts that are at least so deep.
    """

    requests: int
    generated: int
    later: int
    forwards: int
    drafts: int
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...]
    drafted_at: tuple[int, ...]
    forward_seconds: float
    python_seconds: float
    drafter_seconds: float

    @classmethod
    def of(cls, requests: Sequence[Played]) -> Totals:
        """Sum up ``requests``."""
        drafts = [step for request in requests for step in request.steps if step.tokens]
        depths = range(max((step.depth for step in drafts), default=0))
        return cls(
            requests=len(requests),
            drafts=len(drafts),
            drafted=sum(step.tokens for step in drafts),
            accepted=sum(step.accepted for step in drafts),
            accepted_at=tuple(sum(step.accepted > depth for step in drafts) for depth in depths),
            drafted_at=tuple(sum(step.depth > depth for step in drafts) for depth in depths),
            **{name: sum(getattr(request, name) for request in requests) for name in SUMS},
        )

    @property
    def acceptance(self) -> tuple[float, ...]:
        """For each depth, the share of drafts that reach it whose token there was accepted."""
        return tuple(a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True))

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts: mean tokens per verifying forward, with the bonus token."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def tokens_per_forward(self) -> float:
        return self.generated / self.forwards if self.forwards else 0.0

    @property
    def forwards_saved(self) -> int:
        """Number of forwards saved compared with plain decoding, which needs one for each token."""
        return self.generated - self.forwards

    @property
    def drafter_seconds_per_token(self) -> float:
        return self.drafter_seconds / self.generated if self.generated else 0.0

    @property
    def seconds(self) -> float:
        """Predicted seconds after the first commits."""
        return self.forward_seconds + self.python_seconds

    @property
    def tokens_per_second(self) -> float:
        """Predicted decode speed in tokens per second, defined like ``Stats.tokens_per_second``."""
        return self.later / self.seconds if self.later and self.seconds > 0 else 0.0


@dataclass(frozen=True)
class ReplayOutcome:
    """The results of a method on a recording.

    Attributes:
        exact: whether every draft is the same as in the engine. It is False if the method read
            distributions that the recording does not hold; figures are then estimates.
    """

    spec: str
    exact: bool
    requests: tuple[Played, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups, in the order of the requests."""
        return tuple(dict.fromkeys(request.group for request in self.requests))

    def totals(self, group: str | None = None) -> Totals:
        """Sum up the requests of one group, or all requests."""
        return Totals.of([r for r in self.requests if group in (None, r.group)])

    def speed_up(self, plain: ReplayOutcome, group: str | None = None) -> float:
        """Return the predicted speed over that of ``plain``, from totals.

        The result is 0 if nothing was decoded.
        """
        base = plain.totals(group).tokens_per_second
        return self.totals(group).tokens_per_second / base if base else 0.0

    def interval(self, plain: ReplayOutcome, group: str | None = None) -> Interval | None:
        """Return :meth:`speed_up` with its 95 % interval over requests.

        The result is None if nothing was decoded.
        """
        pairs = [(mine, base) for mine, base in zip(self.requests, plain.requests, strict=True)
                 if group in (None, mine.group)]  # fmt: skip
        return interval([(*mine.spent, *base.spent) for mine, base in pairs], ratio_of_ratios)


DEPTHS = 3
"""Number of draft positions that the table shows."""
ESTIMATE = "~ an estimate: the method reads what no recording holds"
DERIVED = (
    "acceptance",
    "mean_acceptance_length",
    "tokens_per_forward",
    "forwards_saved",
    "drafter_seconds_per_token",
    "seconds",
    "tokens_per_second",
)
"""Figures in a record that are computed from the sums beside them."""


def outcome_record(outcome: ReplayOutcome, plain: ReplayOutcome) -> dict[str, Any]:
    """Return the JSON record of one method: totals over all requests and for each group."""

    def totals(group: str | None) -> dict[str, Any]:
        found = outcome.totals(group)
        derived = {name: getattr(found, name) for name in DERIVED}
        ratio = outcome.interval(plain, group)
        own = {"speed_up": outcome.speed_up(plain, group),
               "speed_up_interval": [ratio.low, ratio.high] if ratio else None}  # fmt: skip
        return {**asdict(found), **derived, **own}

    return {
        "method": outcome.spec,
        "exact": outcome.exact,
        "total": totals(None),
        "groups": {name: totals(name) for name in outcome.groups},
    }


def too_short_to_rank(outcomes: Sequence[ReplayOutcome], plain: ReplayOutcome) -> str:
    """Return a warning if a recording is too short to rank methods, and an empty text otherwise."""
    requests, tokens = len(plain.requests), plain.totals().generated
    ratios = {outcome.spec: outcome.interval(plain) for outcome in outcomes}
    return too_short(requests, tokens / max(1, requests), ratios)


def outcome_table(
    outcomes: Sequence[ReplayOutcome], plain: ReplayOutcome, by_group: bool = False
) -> Table:
    """Return a table of all methods, the fastest first; ``~`` marks figures that are estimates.

    ``speed-up`` is predicted, with its 95 % interval over requests. ``tok/fwd`` is the number of
    tokens per forward, ``% kept`` the share of draft tokens accepted at depth 1, 2, 3. ``saved`` is
    the number of forwards that plain decoding needs in addition. ``us`` is the method's own time in
    microseconds per token.

    Args:
        by_group: whether every method has a row for each group of at least three requests.
    """
    tokens = plain.totals().generated
    table = Table(title=f"{tokens} tokens, by replay", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold", min_width=16)
    for name in ("speed-up", "tok/fwd", "length", "% kept", "drafted", "saved", "us"):
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(outcomes, key=lambda outcome: -outcome.speed_up(plain))
    for outcome in (plain, *ordered):
        table.add_row(escape(outcome.spec), *_cells(outcome, plain, None))
        for group in outcome.groups if by_group else ():
            if plain.totals(group).requests >= ENOUGH_OF_A_GROUP:
                table.add_row(f"  {escape(group)}", *_cells(outcome, plain, group))
    said = [] if all(outcome.exact for outcome in outcomes) else [ESTIMATE]
    said.append(too_short_to_rank(outcomes, plain))
    table.caption = "\n".join(map(escape, filter(None, said))) or None
    return table


def _cells(outcome: ReplayOutcome, plain: ReplayOutcome, group: str | None) -> list[str]:
    totals, about = outcome.totals(group), "" if outcome.exact else "~"
    return [
        f"{about}{ends(outcome.interval(plain, group))}",
        f"{about}{totals.tokens_per_forward:.2f}",
        f"{about}{totals.mean_acceptance_length:.2f}",
        " ".join(f"{100 * share:.0f}" for share in totals.acceptance[:DEPTHS]),
        str(totals.drafted),
        str(totals.forwards_saved),
        f"{1e6 * totals.drafter_seconds_per_token:.0f}",
    ]
