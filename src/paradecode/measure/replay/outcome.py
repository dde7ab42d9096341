"""What a method would have done on a recorded workload: plain data that can be pickled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Drafted:
    """One commit: draft tokens verified, how deep they reached, how many were accepted."""

    tokens: int
    depth: int
    accepted: int


@dataclass(frozen=True)
class Played:
    """One request. All but the seconds of Python is the same in every run.

    Attributes:
        id, group: of the recording.
        generated: output tokens.
        later: those that came after the first commit; only they and their time make the speed.
        forwards: of the target.
        steps: one entry a commit.
        forward_seconds: of the later forwards, by the cost curve and the recorded timing.
        python_seconds: predicted for the rest of the later steps, engine and method.
        drafter_seconds: the method's own Python, as measured here (all steps).
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


SUMS = ("generated", "later", "forwards")
SECONDS = ("forward_seconds", "python_seconds", "drafter_seconds")


@dataclass(frozen=True)
class Totals:
    """Sums over requests; ``accepted_at`` and ``drafted_at`` count drafts by depth (from 1)."""

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

    @property
    def acceptance(self) -> tuple[float, ...]:
        """For each depth, the share of drafts that reached so deep whose token there was kept."""
        return tuple(a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True))

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts: tokens per drafted forward, bonus token included."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def tokens_per_forward(self) -> float:
        return self.generated / self.forwards if self.forwards else 0.0

    @property
    def forwards_saved(self) -> int:
        """Against plain decoding, which needs one forward a token."""
        return self.generated - self.forwards

    @property
    def drafter_seconds_per_token(self) -> float:
        return self.drafter_seconds / self.generated if self.generated else 0.0

    @property
    def seconds(self) -> float:
        """Predicted time after the first commits."""
        return self.forward_seconds + self.python_seconds

    @property
    def tokens_per_second(self) -> float:
        """Predicted decode speed, as ``Stats.tokens_per_second`` measures it."""
        return self.later / self.seconds if self.later and self.seconds > 0 else 0.0


@dataclass(frozen=True)
class ReplayOutcome:
    """A method on a recording.

    Attributes:
        spec: the method with its settings.
        exact: every draft is the one that the engine would have made. False where the method read
            distributions that the recording does not hold; its figures are estimates then.
        requests: in the order of the recording.
    """

    spec: str
    exact: bool
    requests: tuple[Played, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups' names, in order of appearance."""
        return tuple(dict.fromkeys(request.group for request in self.requests))

    def totals(self, group: str | None = None) -> Totals:
        """Sums over one group, or over all requests."""
        return _totals(r for r in self.requests if group in (None, r.group))

    def speed_up(self, plain: ReplayOutcome, group: str | None = None) -> float:
        """Predicted speed over that of ``plain``, token-weighted; 0 where nothing was decoded."""
        base = plain.totals(group).tokens_per_second
        return self.totals(group).tokens_per_second / base if base else 0.0


def _totals(requests: Iterable[Played]) -> Totals:
    chosen = list(requests)
    drafts = [step for request in chosen for step in request.steps if step.tokens]
    depths = range(max((step.depth for step in drafts), default=0))
    return Totals(
        requests=len(chosen),
        drafts=len(drafts),
        drafted=sum(step.tokens for step in drafts),
        accepted=sum(step.accepted for step in drafts),
        accepted_at=tuple(sum(step.accepted > depth for step in drafts) for depth in depths),
        drafted_at=tuple(sum(step.depth > depth for step in drafts) for depth in depths),
        **{name: sum(getattr(request, name) for request in chosen) for name in (*SUMS, *SECONDS)},
    )
