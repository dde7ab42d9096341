"""Draws both sides' answers at places where drafts are verified and few words may follow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from paradecode_lab.measure.certificate.servers.law import (
    Draw,
    PlaceTest,
    compare_draws,
    find_split,
    words,
)
from paradecode_lab.measure.certificate.servers.sides import (
    DraftCount,
    RemoteAsk,
    Side,
    drafts_by_time,
)

LINES = (
    ("The coin", "shows", ("heads", "tails")), ("The lamp", "is", ("red", "green")),
    ("Today it", "was", ("wet", "dry")), ("The vote", "said", ("yes", "no")),
    ("The door", "is", ("open", "shut")), ("My card", "is", ("black", "white")),
    ("Our team", "has", ("won", "lost")), ("The die", "shows", ("one", "two", "three")),
    ("The bird", "sang", ("loudly", "softly")), ("The path", "went", ("left", "right")),
)  # fmt: skip
"""Beginnings of lines, what follows for certain, and the words between which chance decides."""
REPEATED = 10
"""Number of lines of a prompt. They repeat one another, so that n-grams find drafts in them."""
DRAW = 4
"""Number of tokens of a draw: a certain one, one by chance, and room for a draft behind it."""
PILOT, FIRSTS, TRIED = 100, 20, 20
"""Numbers of plain draws, plain first tokens and speculative draws by which places are chosen."""
DRAFTED = 0.5
"""The least number of verified draft tokens a draw; with fewer there is no test at a place."""
MOST = 6


@dataclass(frozen=True)
class SplitPlace:
    """A prompt and the beginning of its answers, where both sides are compared.

    Attributes:
        share: the share of draws that reach the place.
        seconds: duration of a plain draw.
        drafts: the drafts of the pilot's speculative draws.
    """

    prompt: str
    prefix: Draw
    share: float
    seconds: float
    drafts: DraftCount | None


@dataclass(frozen=True)
class PlaceResultOfSides:
    """The results at one place.

    Attributes:
        test: the plain draws against the speculative ones.
        halves: the plain draws of the beginning against those of the end.
        drafts: the drafts of all speculative draws; None if they are not counted.
        draws: number of speculative draws.
    """

    place: SplitPlace
    test: PlaceTest
    halves: PlaceTest
    drafts: DraftCount | None
    draws: int


def prompts_of_lines(api: str, seed: int) -> list[str]:
    """Return prompts whose answers go on with a line that ends by chance."""
    chance, found = random.Random(seed), []
    for start, certain, ends in LINES:
        lines = [f"{start} {certain} {chance.choice(ends)}." for _ in range(REPEATED)]
        if api == "chat":
            found.append("\n".join(["Write one more line like these, and nothing else:", *lines]))
        else:
            found.append("\n".join([*lines, start]))
    return found


def find_split_places(
    plain: Side,
    drafting: Side,
    temperature: float,
    seed: int,
    parallel: int,
    ended: Callable[[], None] = lambda: None,
) -> list[SplitPlace]:
    """Choose places by a few draws, the best first; only those where a draft is verified."""
    found = []
    for prompt in prompts_of_lines(plain.api, seed):
        ask = RemoteAsk(prompt, DRAW, temperature)
        firsts = plain.run([RemoteAsk(prompt, 1, temperature)] * FIRSTS, parallel).outputs
        pilot = plain.run([ask] * PILOT, parallel)
        split = find_split([words(each.text) for each in pilot.outputs],
                           [each.text for each in firsts])  # fmt: skip
        ended()
        if split is None:
            continue
        drafts = drafting.run([ask] * TRIED, parallel).drafts
        drafts = drafts or drafts_by_time(plain, drafting, [ask] * TRIED)
        if drafts is not None and _enough(drafts, TRIED):
            found.append(SplitPlace(prompt, *split, pilot.seconds / PILOT, drafts))
    return sorted(found, key=lambda place: -place.share)


def _enough(drafts: DraftCount, draws: int) -> bool:
    known = drafts.accepted if drafts.drafted is None else drafts.drafted
    return known >= DRAFTED * draws


def how_many(places: list[SplitPlace], samples: int, seconds: float) -> int:
    """Return how many places can be tested in the time, at least one if there is one."""
    for number, place in enumerate(places[:MOST]):
        seconds -= 2.0 * place.seconds * samples / place.share
        if seconds < 0.0:
            return max(number, 1)
    return len(places[:MOST])


def draw_place(
    plain: Side,
    drafting: Side,
    place: SplitPlace,
    temperature: float,
    samples: int,
    places: int,
    parallel: int,
    ended: Callable[[], None] = lambda: None,
) -> PlaceResultOfSides:
    """Draw ``samples`` answers that reach the place from each side, and compare them.

    The speculative draws stand between two halves of the plain ones. Each draw is a request of its
    own, because servers may not draw the outputs of one request independently.
    """
    half = ceil(samples / place.share / 2.0)
    ask = RemoteAsk(place.prompt, DRAW, temperature)

    def draws(side: Side, count: int) -> tuple[list[Draw], DraftCount | None]:
        run = side.run([ask] * count, parallel, ended)
        return [words(each.text) for each in run.outputs], run.drafts

    before, _ = draws(plain, half)
    drafted, drafts = draws(drafting, 2 * half)
    after, _ = draws(plain, half)
    return PlaceResultOfSides(
        place, compare_draws(before + after, drafted, place.prefix, places),
        compare_draws(before, after, place.prefix, places), drafts, len(drafted),
    )  # fmt: skip
