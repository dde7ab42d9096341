"""The joint law of the first tokens through the whole engine, against the model's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paradecode.core.decoder import Decoder
from paradecode.core.noise import key
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.measure.certificate.chisquare import NOMINAL, p_value, statistic
from paradecode.measure.certificate.control import biased
from paradecode.measure.certificate.law import Word
from paradecode.measure.certificate.places import BATCH, DEPTH, ROOM, Place
from paradecode.measure.certificate.plan import Plan, Subject
from paradecode.measure.certificate.requests import Job, running, serve

CONTROLS = (1.25, 1.1, 0.9, 0.8)
"""What the controls multiply every acceptance probability by."""
REQUIRED = 0.8
"""The control that must be found, or the certificate has no power. It is wrong whatever the drafts;
one that accepts too often is nearly right where the draft model is nearly the target."""
DRAFTED = 0.5
"""Least share of requests whose first forward must verify a draft."""
LOOKS = (32, 16, 8, 4, 2, 1)
"""A control is looked at after the samples divided by these, and stopped once found."""


@dataclass(frozen=True)
class PlaceResult:
    """One place: how likely its draft was, what was counted there, and the test of it alone.

    ``distance`` is the total variation between the counts and the law; with n requests in k cells
    it is about sqrt(k / n) / 2 when the law is kept.
    """

    text: str
    prompt_tokens: int
    draft: float
    entropy: float
    cells: int
    drafted: float
    distance: float
    statistic: float
    freedom: int
    p: float


@dataclass(frozen=True)
class Control:
    """A biased verifier: after how many requests it was found (None: never), and what was seen.

    ``distance`` is the largest of all places, ``p`` the smallest of all tests.
    """

    factor: float
    found_at: int | None
    distance: float
    p: float
    required: bool

    @property
    def passed(self) -> bool:
        return self.found_at is not None or not self.required


@dataclass(frozen=True)
class Distribution:
    """The test at all places.

    Attributes:
        samples: requests in all.
        drafted, accepted: draft tokens that the target scored, and those that stayed.
        drafted_share: requests whose first forward verified a draft.
        places: each alone.
        statistic, freedom, p: all together.
        level: what every p (each place's, and the one of all together) must exceed.
        controls: the biased verifiers; empty for a lossy method.
    """

    samples: int
    drafted: int
    accepted: int
    drafted_share: float
    places: tuple[PlaceResult, ...]
    statistic: float
    freedom: int
    p: float
    level: float
    controls: tuple[Control, ...] = ()

    @property
    def same_law(self) -> bool:
        """Whether no test rejects the model's own law."""
        return bool(self.places) and min([self.p, *(place.p for place in self.places)]) > self.level

    @property
    def enough_drafts(self) -> bool:
        return self.drafted_share >= DRAFTED

    @property
    def passed(self) -> bool:
        controls = all(control.passed for control in self.controls)
        return self.same_law and self.enough_drafts and controls


class Tally:
    """Counts the first ``DEPTH`` tokens of ever more requests at every place.

    No measured time enters: without a cost curve every draft is verified, and the counts are the
    same on every run.
    """

    def __init__(
        self, engine: Engine, make: Callable[[], Decoder], places: Sequence[Place], plan: Plan,
        salt: str, ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self._engine, self._make, self._plan = engine, make, plan
        self._salt, self._ended = salt, ended
        self.places = places
        self.words = [Counter[Word]() for _ in places]
        self.first = [0] * len(places)
        self.drafted = self.accepted = self.done = 0

    def run(self, samples: int) -> None:
        """Until there were ``samples`` requests at each place."""
        with running(self._engine, costs=False, batch=BATCH):
            for index, place in enumerate(self.places):
                for start in range(self.done, samples, 16 * BATCH):
                    self._some(index, place, start, min(start + 16 * BATCH, samples))
        self.done = max(self.done, samples)

    def _some(self, index: int, place: Place, start: int, end: int) -> None:
        params = SamplingParams(ROOM, temperature=self._plan.temperature, ignore_eos=True)
        seeds = [key(self._plan.seed, (index << 32) + number) for number in range(start, end)]
        jobs = [
            Job(place.prompt, self._make, replace(params, seed=seed), self._salt) for seed in seeds
        ]
        for sequence in serve(self._engine, jobs, self._ended, DEPTH):
            if sequence.error is not None:
                raise sequence.error
            self.words[index][tuple(sequence.output[:DEPTH])] += 1
            self.first[index] += len(sequence.trace[0].tree) > 0
            stats = sequence.stats
            self.drafted += stats.drafted
            self.accepted += stats.accepted

    def result(self) -> Distribution:
        """The test of what was counted so far."""
        results: list[PlaceResult] = []
        for place, words, first in zip(self.places, self.words, self.first, strict=True):
            seen, shares = place.law.group(words)
            value, freedom = statistic(seen, shares), len(seen) - 1
            distance, drafted = _distance(seen, shares), first / max(self.done, 1)
            results.append(
                PlaceResult(
                    place.text, len(place.prompt), place.draft, place.law.entropy, len(seen),
                    drafted, distance, value, freedom, p_value(value, freedom),
                )
            )  # fmt: skip
        total = sum(result.statistic for result in results)
        freedom = sum(result.freedom for result in results)
        samples = self.done * len(results)
        return Distribution(
            samples, self.drafted, self.accepted, sum(self.first) / max(samples, 1),
            tuple(results), total, freedom, p_value(total, freedom), NOMINAL / (len(results) + 1),
        )  # fmt: skip


def _distance(seen: Sequence[int], shares: Sequence[float]) -> float:
    total = max(sum(seen), 1)
    return sum(abs(count / total - share) for count, share in zip(seen, shares)) / 2


def check_law(
    engine: Engine,
    subject: Subject,
    places: Sequence[Place],
    plan: Plan,
    ended: Callable[[], None],
) -> Distribution:
    """Test the subject at all places, then the controls of a method that promises the law.

    Raises:
        Exception: whatever ended a request.
    """
    tally = Tally(engine, subject.make, places, plan, "law", ended)
    tally.run(plan.samples)
    result = tally.result()
    if subject.guarantee == "lossy" or not places:
        return result
    controls = []
    for factor in CONTROLS:
        wrong = biased(subject.make, factor)
        tally = Tally(engine, wrong, places, plan, f"x{factor}", ended)
        controls.append(_control(tally, factor, plan.samples))
    return replace(result, controls=tuple(controls))


def _control(tally: Tally, factor: float, samples: int) -> Control:
    found = None
    result = tally.result()
    for look in LOOKS:
        tally.run(samples // look)
        result = tally.result()
        if not result.same_law:
            found = result.samples
            break
    p = min([result.p, *(place.p for place in result.places)])
    distance = max(place.distance for place in result.places)
    return Control(factor, found, distance, p, required=factor == REQUIRED)
