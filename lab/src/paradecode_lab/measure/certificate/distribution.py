"""Tests the joint distribution (law) of an output's first tokens against the model's own.

The requests go through the whole engine. The negative control is a verifier that is wrong on
purpose: a certificate that did not notice it would prove nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paradecode.core.decoder import Decoder
from paradecode.core.errors import InvalidInput
from paradecode.core.noise import key
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.loop import DraftVerify
from paradecode.methods.draft.verifiers import rule, top_down
from paradecode_lab.measure.certificate.law import NOMINAL, Word, p_value, statistic
from paradecode_lab.measure.certificate.places import BATCH, DEPTH, ROOM, LawPlace
from paradecode_lab.measure.certificate.plan import Trial
from paradecode_lab.measure.certificate.requests import request, running, serve


class Skewed:
    """A chance that accepts a draft token with min(1, factor p / q) in place of min(1, p / q)."""

    def __init__(self, fair: rule.Chance, factor: float) -> None:
        self._fair, self._factor = fair, factor

    def accept(self, p: float, q: float = 1.0) -> bool:
        return self._fair.accept(self._factor * p, q)

    def draw(self, weights: rule.Row) -> int:
        return self._fair.draw(weights)


@dataclass
class BiasedRejection(top_down.Rejection):
    """Rejection sampling that accepts with the probabilities of :class:`Skewed`."""

    factor: float

    def rule(self, p: rule.Rows, tree: TokenTree, chance: rule.Chance) -> rule.Accepted:
        return super().rule(p, tree, Skewed(chance, self.factor))


def biased(make: Callable[[], Decoder], factor: float) -> Callable[[], Decoder]:
    """Build decoders that make the same drafts, but verify them with skewed rejection sampling.

    A factor above 1 accepts too often. The output then follows q, the law of the drafts, too often,
    which is hard to notice where q is close to p. A factor below 1 rejects too often. The output
    then follows norm((p - q)+) too often, which is easy to notice.

    Raises:
        InvalidInput: the returned function is called, and its decoder is not draft-and-verify, so
            that no control exists.
    """

    def build() -> Decoder:
        decoder = make()
        if not isinstance(decoder, DraftVerify):
            name = type(decoder).__name__
            raise InvalidInput("decoder", name, "no control can be made: it is not a DraftVerify")
        decoder.verify = BiasedRejection(factor)
        return decoder

    return build


CONTROLS = (1.25, 1.1, 0.9, 0.8)
"""Factors of the controls, by which they multiply every acceptance probability."""
REQUIRED = 0.8
"""Factor of the control that the test must notice; otherwise the certificate has no power.

This control is wrong with any drafts. A control that accepts too often is nearly right if the draft
model is good.
"""
DRAFTED = 0.5
"""Least share of requests whose first forward verified a draft; with less there is no verdict."""
LOOKS = (32, 16, 8, 4, 2, 1)
"""A control is tested after the whole number of samples divided by each of these, in order.

It stops as soon as the test notices it.
"""


@dataclass(frozen=True)
class PlaceResult:
    """The result at one place, which is a prefix of a text.

    Attributes:
        text: name of the text.
        prompt_tokens: number of tokens of the prefix.
        draft: the target's probability of the first draft token there.
        entropy: entropy of the law there, in nats.
        cells: number of cells of the test.
        drafted: share of requests whose first forward verified a draft.
        distance: total variation between the counts and the law. With n requests in k cells it is
            about sqrt(k / n) / 2 if the decoder keeps the law.
        statistic, freedom, p: the test's statistic, degrees of freedom and p-value.
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
    """The result of a biased verifier.

    Attributes:
        factor: factor on every acceptance probability.
        found_at: number of requests after which the test noticed the bias; None if it never did.
        distance: the largest total variation at any place.
        p: the smallest p-value of all tests.
        required: whether the test must notice it.
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
class LawTest:
    """The result of the test at all places together, and at each place.

    Attributes:
        samples: number of all requests.
        drafted, accepted: numbers of draft tokens that the target scored, and of those that it
            accepted.
        drafted_share: share of requests whose first forward verified a draft.
        level: the significance level that every p-value must exceed.
        controls: results of the biased verifiers; empty for a lossy method.
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
        """True if no test rejects the hypothesis that the tokens follow the model's own law."""
        return bool(self.places) and self.smallest_p > self.level

    @property
    def smallest_p(self) -> float:
        """The smallest p-value of the test over all places and of the tests at single places."""
        return min([self.p, *(place.p for place in self.places)])

    @property
    def enough_drafts(self) -> bool:
        return self.drafted_share >= DRAFTED

    @property
    def passed(self) -> bool:
        controls = all(control.passed for control in self.controls)
        return self.same_law and self.enough_drafts and controls


@dataclass
class Tally:
    """Counts the first ``DEPTH`` tokens of a growing number of requests at every place.

    Measured times do not matter: without a cost curve every draft is verified, so that the counts
    are the same on every run.
    """

    trial: Trial
    make: Callable[[], Decoder]
    places: Sequence[LawPlace]
    salt: str
    ended: Callable[[], None]

    def __post_init__(self) -> None:
        self.words = [Counter[Word]() for _ in self.places]
        self.first = [0] * len(self.places)
        self.drafted = self.accepted = self.done = 0

    def run(self, samples: int) -> None:
        """Run requests until each place has ``samples`` of them.

        It raises the error that ended a request.
        """
        with running(self.trial.engine, costs=False, batch=BATCH):
            for index in range(len(self.places)):
                for start in range(self.done, samples, 16 * BATCH):
                    self._count(index, range(start, min(start + 16 * BATCH, samples)))
        self.done = max(self.done, samples)

    def _count(self, index: int, numbers: range) -> None:
        params = SamplingParams(ROOM, temperature=self.trial.plan.temperature, ignore_eos=True)
        seeds = [key(self.trial.plan.seed, (index << 32) + number) for number in numbers]
        prompt = self.places[index].prompt
        requests = [
            request(prompt, self.make, replace(params, seed=seed), self.salt) for seed in seeds
        ]
        for sequence in serve(self.trial.engine, requests, self.ended, DEPTH):
            if sequence.error is not None:
                raise sequence.error
            self.words[index][tuple(sequence.output[:DEPTH])] += 1
            self.first[index] += len(sequence.trace[0].tree) > 0
            self.drafted += sequence.stats.drafted
            self.accepted += sequence.stats.accepted

    def result(self) -> LawTest:
        """Test the present counts against the law."""
        results = [
            self._at(place, words, first / max(self.done, 1))
            for place, words, first in zip(self.places, self.words, self.first, strict=True)
        ]
        total = sum(result.statistic for result in results)
        freedom = sum(result.freedom for result in results)
        samples = self.done * len(results)
        return LawTest(
            samples=samples,
            drafted=self.drafted,
            accepted=self.accepted,
            drafted_share=sum(self.first) / max(samples, 1),
            places=tuple(results),
            statistic=total,
            freedom=freedom,
            p=p_value(total, freedom),
            level=NOMINAL / (len(results) + 1),
        )

    @staticmethod
    def _at(place: LawPlace, words: Counter[Word], drafted: float) -> PlaceResult:
        seen, shares = place.law.group(words)
        total, value, freedom = max(sum(seen), 1), statistic(seen, shares), len(seen) - 1
        return PlaceResult(
            text=place.text,
            prompt_tokens=len(place.prompt),
            draft=place.draft,
            entropy=place.law.entropy,
            cells=len(seen),
            drafted=drafted,
            distance=sum(abs(n / total - share) for n, share in zip(seen, shares)) / 2,
            statistic=value,
            freedom=freedom,
            p=p_value(value, freedom),
        )


def check_law(trial: Trial, places: Sequence[LawPlace]) -> LawTest:
    """Test the decoder at all places. If it promises the law, test the controls as well.

    Raises:
        Exception: the error that ended a request.
    """
    claim, samples = trial.claim, trial.plan.samples
    factors = CONTROLS if claim.guarantee == "distribution" else ()
    ended = trial.counter("law and controls", samples * len(places) * (1 + len(factors)))
    tally = Tally(trial, claim.make, places, "law", ended)
    tally.run(samples)
    result = tally.result()
    controls = [
        _control(Tally(trial, biased(claim.make, f), places, f"x{f}", ended), f) for f in factors
    ]
    return replace(result, controls=tuple(controls))


def _control(tally: Tally, factor: float) -> Control:
    found = None
    result = tally.result()
    for look in LOOKS:
        tally.run(tally.trial.plan.samples // look)
        result = tally.result()
        if not result.same_law:
            found = result.samples
            break
    distance = max(place.distance for place in result.places)
    return Control(factor, found, distance, result.smallest_p, required=factor == REQUIRED)
