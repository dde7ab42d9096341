"""The forecast of a plan: time per token, throughput, busy machines, memory, and whether drafts
pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from paradecode.core.checks import attributes, checked, number, whole
from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.plan.described import Plan
from paradecode_lab.measure.plan.events import Leg, Simulated, play
from paradecode_lab.measure.plan.pieces import Anatomy, Piece

ROW_BYTES, TOKEN_BYTES = 4, 4
"""Bytes of a number of a state that is sent (float32), and of a token."""
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Numbers of rows of a forward that are tried: a token and its draft."""
MOST_LEGS = 4_000_000
"""The largest number of visits of a simulation; more take minutes."""


@dataclass(frozen=True)
class Work:
    """The decoding work for which a plan is made.

    Attributes:
        context: tokens before the first pass.
        rows: rows of a sequence in a pass; more than one without ``acceptance`` are a block.
        batch: sequences that go through the machines together.
        flights: batches that are on their way at a time.
        passes: how often each batch goes through the model.
        acceptance: chance of a drafted token to be accepted, if those before it are.
        queue: if not 0, there are so many blocks on the way, each is passed so often, and begins
            when the one before it has had a pass; ``flights`` is the number of all blocks.
    """

    context: int = checked(whole(1, 1 << 24), 512)
    rows: int = checked(whole(1, 4096), 1)
    batch: int = checked(whole(1, 1 << 16), 1)
    flights: int = checked(whole(1, 4096), 1)
    passes: int = checked(whole(1, 1 << 16), 64)
    acceptance: float = checked(number(0, 1), 0.0)
    queue: int = checked(whole(0, 4096), 0)

    def __post_init__(self) -> None:
        attributes(self)

    def tokens(self, rows: int) -> float:
        """Return the tokens that a sequence gets by a pass of so many rows, on average."""
        if self.queue:
            return rows / self.queue
        return sum(self.acceptance**drafted for drafted in range(rows))


@dataclass(frozen=True)
class PlanOutcome:
    """The simulation of a plan with one number of rows.

    Attributes:
        rows: rows of a sequence in a pass.
        tokens: tokens that a sequence gets by a pass.
        first: seconds of the first pass, when nothing else is on its way.
        a_token: mean seconds between two tokens of a sequence.
        a_second: tokens of all sequences in a second, over the whole time.
        busy: machine or link -> its share of the time.
    """

    rows: int
    tokens: float
    first: float
    a_token: float
    a_second: float
    busy: dict[str, float]

    @property
    def bound(self) -> str:
        """The machine or link that is busy most of the time."""
        return max(self.busy, key=self.busy.__getitem__)


class PlanForecast:
    """A plan for a model and its work, and what the simulation says about them.

    Args:
        draft: the draft model, if a model drafts.

    Raises:
        InvalidInput: a part is on no machine or on two, a machine's speed or a link is missing, or
            a machine's memory does not hold what is placed there.
    """

    def __init__(
        self, plan: Plan, model: Anatomy, work: Work, draft: Anatomy | None = None
    ) -> None:
        self.plan, self.model, self.work, self.draft = plan, model, work, draft
        self.visits = plan.visits(model.pieces)
        for machine, _ in self.visits:
            plan.machines[machine].check(machine, model.name)
        if draft and plan.draft:
            plan.machines[plan.draft.machine].check(plan.draft.machine, draft.name)
        self.memory = self._memory()

    def _memory(self) -> dict[str, float]:
        """Return the bytes that each machine holds."""
        work, found = self.work, dict.fromkeys(self.plan.machines, 0.0)
        grown = work.rows if work.queue else work.passes * work.tokens(max(WIDTHS))
        tokens = work.context + ceil(grown)
        live = (work.queue or work.flights) * work.batch
        places = [(machine, piece) for machine, own in self.visits for piece in own]
        if self.draft and self.plan.draft:
            places += [(self.plan.draft.machine, piece) for piece in self.draft.pieces]
        for machine, piece in places:
            found[machine] += piece.memory(tokens, live)
        if self.visits[0][0] != self.visits[-1][0]:  # A tied head needs the embeddings again.
            last = self.model.pieces[-1]
            found[self.visits[-1][0]] += last.read - last.stored
        for machine, device in self.plan.machines.items():
            if device.memory and found[machine] > device.memory:
                fix = f"it must hold {found[machine] / 1e9:.3g} GB: place fewer layers there, or"
                fix += " have fewer flights, a smaller batch or a shorter context"
                raise InvalidInput(f"machines.{machine}.memory", device.memory, fix)
        return found

    def outcome(self, rows: int) -> PlanOutcome:
        """Simulate passes of so many rows of each sequence."""
        work = self.work
        way, back = self._way(rows)
        passes = work.queue or work.passes
        if work.flights * passes * (len(way) + len(back)) > MOST_LEGS:
            fix = f"a simulation has at most {MOST_LEGS} visits: have fewer passes or flights"
            raise InvalidInput("passes", passes, fix)
        played = play(way, work.flights, passes, back, room=work.queue or None,
                      behind=1 if work.queue else 0)  # fmt: skip
        return self._outcome(rows, played)

    def _outcome(self, rows: int, played: Simulated) -> PlanOutcome:
        work, tokens = self.work, self.work.tokens(rows)
        spans = [own[-1] - own[0] for own in played.ends]
        between = sum(len(own) - 1 for own in played.ends)
        first = played.ends[0][0]
        a_pass = sum(spans) / between if between else first
        made = tokens * work.batch * sum(map(len, played.ends))
        busy = {name: taken / played.seconds for name, taken in played.busy.items()}
        return PlanOutcome(rows, tokens, first, a_pass / tokens, made / played.seconds, busy)

    def outcomes(self) -> list[PlanOutcome]:
        """Return the outcome of the work, or those of more and more rows if drafts are tried."""
        return [
            self.outcome(rows) for rows in (WIDTHS if self.work.acceptance else (self.work.rows,))
        ]

    def _way(self, rows: int) -> tuple[list[Leg], list[Leg]]:
        """Return the legs of a pass, and those from its end to the next one's beginning."""
        work, at = self.work, self.visits[0][0]
        way, state = list[Leg](), ROW_BYTES * self.model.hidden * rows * work.batch
        tokens = TOKEN_BYTES * rows * work.batch
        if rows > 1 and work.acceptance and self.plan.draft:
            at = self.plan.draft.machine
            if self.draft:
                way.append(self._leg(at, self.draft, self.draft.pieces, 1, rows, rows - 1))
        start = at
        for place, (machine, own) in enumerate(self.visits):
            way += self._carried(at, machine, state if place else tokens)
            way.append(self._leg(machine, self.model, own, rows, rows))
            at = machine
        return way, self._carried(at, start, tokens)

    def _leg(
        self, machine: str, model: Anatomy, pieces: Sequence[Piece], rows: int, step: int,
        repeats: int = 1,
    ) -> Leg:  # fmt: skip
        """Return a visit. It takes longer as the context grows, by passes of ``step`` rows."""
        work, device = self.work, self.plan.machines[machine]
        grows = 0.0 if work.queue else work.tokens(step)
        known: dict[int, float] = {}

        def seconds(done: int) -> float:
            context = work.context + int(done * grows)
            if context not in known:
                once = device.seconds(model, pieces, rows, context, work.batch)
                known[context] = repeats * once
            return known[context]

        return Leg(machine, seconds)

    def _carried(self, start: str, end: str, nbytes: float) -> list[Leg]:
        """Return the leg from one machine to another one; none if they are the same."""
        if start == end:
            return []
        link = self.plan.link(start, end)
        return [Leg(f"{start}>{end}", lambda _: nbytes / link.bandwidth, link.latency)]

    def record(self, outcomes: Sequence[PlanOutcome]) -> dict[str, Any]:
        """Return the work, the plan and the outcomes, as JSON."""
        best = max(outcomes, key=lambda each: each.a_second)
        return {
            "work": asdict(self.work), "plan": asdict(self.plan), "memory": self.memory,
            "outcomes": [{**asdict(each), "bound": each.bound} for each in outcomes],
            "best_rows": best.rows, "drafts_pay": best.a_second > outcomes[0].a_second,
        }  # fmt: skip
