"""Runs all checks of a server's certificate in their order, and judges their results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from paradecode.core.checks import attributes, number, whole
from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.certificate.plan import CHECKS, Progress
from paradecode_lab.measure.certificate.servers.law import PlaceTest
from paradecode_lab.measure.certificate.servers.places import (
    DRAFTED,
    LINES,
    PlaceResultOfSides,
    draw_place,
    find_split_places,
    how_many,
)
from paradecode_lab.measure.certificate.servers.sides import DraftCount, RemoteAsk, Side
from paradecode_lab.measure.certificate.servers.tokens import (
    ServedCase,
    SidesCompared,
    compare_sides,
)
from paradecode_lab.measure.prompts import Conversation

SAMPLES, LEAST_SAMPLES, THOROUGH = 10_000, 8_000, 250_000
"""Draws of each side at each place: usually, at least, and to find shifts of 0.01."""
UNSTEADY = 0.5
"""The share of plain answers from which nothing is certified if plain decoding changes them."""


@dataclass(frozen=True)
class ServerPlan:
    """What a server's certificate tests, and how much.

    Attributes:
        max_tokens: the most tokens of the answers that are compared.
        temperature: temperature of the law; 0 leaves it out.
        seed: seed of the prompts of the law, and of answers whose seeds are promised.
        samples: number of draws of each side at each place.
        minutes: the time for which places of the law are chosen; at least one is tested.
        concurrency: number of requests at a time.
        seeded: whether the server promises that a seed gives the same tokens on both sides.

    Raises:
        InvalidInput: a number is out of range (on construction).
    """

    max_tokens: int = 64
    temperature: float = 0.8
    seed: int = 0
    samples: int = SAMPLES
    minutes: float = 10.0
    concurrency: int = 8
    seeded: bool = False

    def __post_init__(self) -> None:
        own = {
            "samples": whole(LEAST_SAMPLES, 10_000_000), "minutes": number(0.0, 100_000.0),
            "concurrency": whole(2, 1024),
        }  # fmt: skip
        fields = ("max_tokens", "temperature", "seed")
        attributes(self, {**{name: CHECKS[name] for name in fields}, **own})


@dataclass
class ServerCertificate:
    """The results of all checks of a server, and the verdict on its speculation.

    Attributes:
        noise: plain answers against plain ones.
        tokens: speculative answers against plain ones.
        law: results of the places where the law was tested.
        failures: the reasons why the speculation did not pass, each a sentence.
        missing: the reasons why nothing can be certified, each a sentence.
    """

    plan: ServerPlan
    texts: int
    noise: list[SidesCompared] = field(default_factory=list)
    tokens: list[SidesCompared] = field(default_factory=list)
    law: list[PlaceResultOfSides] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> Literal["pass", "fail", "none"]:
        if self.missing:
            return "none"
        return "fail" if self.failures else "pass"


def certify_server(
    plain: Side,
    drafting: Side,
    texts: Sequence[Conversation],
    plan: ServerPlan,
    progress: Progress = lambda stage, done, total: None,
) -> ServerCertificate:
    """Test that a server's speculation changes neither its tokens nor the law of its draws.

    Raises:
        InvalidInput: a server cannot be reached, refuses a request, or answers in another form.
    """
    if not texts:
        raise InvalidInput("prompts", 0, "give at least one prompt")
    started = time.perf_counter()
    found = ServerCertificate(plan, len(texts))

    def counter(stage: str, total: int) -> _Counter:
        return _Counter(progress, stage, total)

    cases = [
        ServedCase(text.id, RemoteAsk(text.turns[0], plan.max_tokens, at, seed, scores=True))
        for at, seed in ((0.0, None), *([(plan.temperature, plan.seed)] if plan.seeded else []))
        for text in texts
    ]
    found.noise, found.tokens = compare_sides(
        plain, drafting, cases, plan.concurrency, counter("tokens", 7 * len(cases))
    )
    _judge_tokens(found)
    if plan.temperature > 0.0:
        places = find_split_places(
            plain, drafting, plan.temperature, plan.seed, plan.concurrency,
            counter("places for the law", len(LINES)),
        )  # fmt: skip
        left = 60.0 * plan.minutes - (time.perf_counter() - started)
        count = how_many(places, plan.samples, left)
        draws = sum(2.0 * plan.samples / place.share for place in places[:count])
        ended = counter("draws", round(draws))
        for place in places[:count]:
            result = draw_place(
                plain,
                drafting,
                place,
                plan.temperature,
                plan.samples,
                count,
                plan.concurrency,
                ended,
            )
            found.law.append(result)
            _judge_place(found, result)
        if not places:
            found.missing.append(
                "the law was not tested: at no place a draft was verified where few words may "
                "follow; --temperature 0 leaves it out"
            )
    else:
        found.notes.append("The law of draws above temperature 0 was left out.")
    found.seconds = time.perf_counter() - started
    return found


class _Counter:
    def __init__(self, progress: Progress, stage: str, total: int) -> None:
        self._progress, self._stage, self._total, self._done = progress, stage, total, 0
        progress(stage, 0, total)

    def __call__(self) -> None:
        self._done += 1
        self._progress(self._stage, self._done, self._total)


def _judge_tokens(found: ServerCertificate) -> None:
    for way in found.noise:
        if way.runs - way.equal > UNSTEADY * way.runs:
            found.missing.append(
                f"plain decoding is not steady: {way.runs - way.equal} of {way.runs} answers "
                f"differ when they are asked for {way.way}"
            )
    for way in found.tokens:
        if own := [each for each in way.differences if not (each.moves or each.near_tie)]:
            found.failures.append(
                f"{len(own)} of {way.runs} answers differ from plain decoding ({way.way}) by more "
                "than plain decoding's own noise"
            )
    counts = [way.drafts for way in found.tokens]
    if not any(count is not None and count.any for count in counts):
        found.missing.append(
            "it is not known that anything was drafted: the server counts no drafts, and its "
            "chunks show none"
        )


def _judge_place(found: ServerCertificate, result: PlaceResultOfSides) -> None:
    test, name = result.test, "".join(result.place.prefix).strip()
    if min(test.plain, test.drafted) < LEAST_SAMPLES:
        found.missing.append(f"fewer than {LEAST_SAMPLES} draws reached the place {name!r}")
    elif not result.halves.same_law:
        found.missing.append(f"plain decoding's law moves by itself at the place {name!r}")
    elif result.drafts is not None and not _drafted(result.drafts, result.draws):
        found.missing.append(f"too few drafts were verified in the draws at the place {name!r}")
    elif not test.same_law:
        p = _smallest_p(test)
        found.failures.append(f"the law differs from plain decoding's at {name!r} (p = {p:.1e})")


def _drafted(drafts: DraftCount, draws: int) -> bool:
    return (drafts.drafted or 0) >= DRAFTED * draws


def _smallest_p(test: PlaceTest) -> float:
    return min(test.whole_p, *(each.p for each in test.words))
