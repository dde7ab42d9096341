"""Tests the certificate of a server on servers in this process whose answers are known."""

import json
from math import lgamma, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.certificate.law import p_value
from paradecode_lab.measure.certificate.servers import law, page
from paradecode_lab.measure.certificate.servers.certify import (
    SAMPLES,
    THOROUGH,
    ServerCertificate,
    ServerPlan,
    certify_server,
)
from paradecode_lab.measure.certificate.servers.places import MOST
from paradecode_lab.measure.certificate.servers.sides import Side
from paradecode_lab.measure.prompts import Conversation
from scripted_server import CHANCES, ScriptedServer

TEXTS = [Conversation(name, "own", (name,), 64) for name in ("one", "two", "three")]
GREEDY = ServerPlan(8, temperature=0.0)


def certified(server: ScriptedServer, plan: ServerPlan = GREEDY) -> ServerCertificate:
    sides = (Side("plain", server), Side("speculative", server, body={"drafts": 1}))
    return certify_server(*sides, TEXTS, plan)


def test_equal_answers_pass() -> None:
    found = certified(ScriptedServer(0))
    assert (found.verdict, found.failures, found.missing) == ("pass", [], [])
    assert [way.equal for way in found.noise + found.tokens] == [3] * 6
    assert [(way.drafts.drafted, way.drafts.accepted) for way in found.tokens] == [(6, 3)] * 2


def test_a_difference_fails_and_says_where() -> None:
    found = certified(ScriptedServer(0, spoils=("two",)))
    assert found.verdict == "fail"
    (one,) = found.tokens[0].differences
    assert (one.case, one.position, one.expected, one.got) == ("two", 3, " w3", " other")
    assert (one.gap, one.moves) == (0.75, False)


def test_where_plain_moves_speculation_may_too() -> None:
    found = certified(ScriptedServer(0, spoils=("two",), moves=("two",)))
    differences = [each for way in found.tokens for each in way.differences]
    assert all(each.moves for each in differences)
    assert found.verdict == "pass"


@pytest.mark.parametrize(("noise", "verdict"), [(0.38, "pass"), (0.37, "fail")])
def test_a_gap_within_twice_the_noise_is_taken_off(noise: float, verdict: str) -> None:
    found = certified(ScriptedServer(0, spoils=("two",), noise=noise))
    assert found.noise[0].noise == pytest.approx(noise)
    assert found.verdict == verdict
    assert not any(each.moves for way in found.tokens for each in way.differences)


def test_nothing_is_certified_of_plain_decoding_that_is_not_steady() -> None:
    found = certified(ScriptedServer(0, moves=("one", "two", "three"), spoils=("one",)))
    assert found.verdict == "none"
    assert "not steady" in found.missing[0]


@pytest.mark.parametrize(("counts", "source"), [
    ("timings", "the answers' timings"), ("metrics", "/metrics"), ("chunks", "chunks and time"),
])  # fmt: skip
def test_where_the_number_of_drafts_is_from(counts: str, source: str) -> None:
    found = certified(ScriptedServer(0, counts=counts))
    drafted = None if counts == "chunks" else 6
    assert found.verdict == "pass"
    for way in found.tokens:
        assert way.drafts is not None
        assert (way.drafts.source, way.drafts.any, way.drafts.drafted) == (source, True, drafted)


@pytest.mark.parametrize(("counts", "drafts"), [("", 1), ("timings", 0)])
def test_without_known_drafts_there_is_no_certificate(counts: str, drafts: int) -> None:
    server = ScriptedServer(0, counts=counts)
    sides = Side("plain", server), Side("speculative", server, body={"drafts": drafts})
    found = certify_server(*sides, TEXTS, ServerPlan(8))
    assert found.verdict == "none"
    assert "drafted" in found.missing[0]
    assert found.law == []


def test_the_law_of_a_server() -> None:
    """The whole way, with requests; the two laws are the same, and so are seeded answers."""
    found = certified(ScriptedServer(3), ServerPlan(8, samples=8000, minutes=0.0, seeded=True))
    assert [way.equal for way in found.noise + found.tokens] == [6] * 6
    assert (found.verdict, found.failures, found.missing) == ("pass", [], [])
    (result,) = found.law
    assert result.test.plain >= 8000
    assert result.drafts.drafted == 2 * result.draws
    assert len(result.test.words) == 2
    assert 0.04 < result.test.smallest < 0.051


@pytest.mark.parametrize("seed", [1, 2])
def test_a_shifted_token_of_a_server_is_found(seed: int) -> None:
    found = certified(ScriptedServer(seed, shift=0.05), ServerPlan(8, minutes=0.0))
    assert found.verdict == "fail"
    assert "the law differs" in found.failures[0]


def drawn(seed: int, shift: float, places: int, samples: int = SAMPLES) -> list[law.PlaceTest]:
    """Draw what the scripted server draws at several places; only the first one is shifted."""
    chance = np.random.default_rng(seed)
    shifted = (CHANCES[0] + shift, CHANCES[1] - shift, CHANCES[2])

    def side(chances: tuple[float, ...]) -> list[law.Draw]:
        counts = chance.multinomial(samples, chances)
        words = [(" shows", word, ".", "\nThe") for word in (" heads", " tails", " never")]
        return [word for word, count in zip(words, counts) for _ in range(count)]

    return [
        law.compare_draws(
            side(CHANCES), side(shifted if number == 0 else CHANCES), (" shows",), places
        )
        for number in range(places)
    ]


@pytest.mark.parametrize(("shift", "least"), [(0.05, 99), (0.0, 0)])
def test_a_shifted_token_is_found(shift: float, least: int) -> None:
    """A proxy shifts one token at one of six places in each of 100 seeded runs."""
    found = sum(any(not test.same_law for test in drawn(seed, shift, MOST)) for seed in range(100))
    assert found >= least if shift else found == 0


@pytest.mark.slow
def test_a_thorough_run_finds_a_hundredth() -> None:
    runs = [drawn(seed, 0.01, 1, THOROUGH)[0] for seed in range(100)]
    assert sum(not test.same_law for test in runs) >= 99
    assert max(test.smallest for test in runs) < 0.01


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 0.75])
def test_the_smallest_shift_is_found_with_its_power(share: float) -> None:
    """Simulates single words: the shift that the page names is found in 99 % of 20,000 runs."""
    chance, n = np.random.default_rng(5), SAMPLES
    draws = [(" a", " x")] * round(n * share) + [(" a", " y")] * round(n * (1 - share))
    (test,) = law.compare_draws(draws, draws, (" a",), MOST).words
    level = law.compare_draws(draws, draws, (" a",), MOST).word_level
    assert test.smallest <= 0.05
    low, high = share - test.smallest / 2, share + test.smallest / 2
    pairs = zip(chance.binomial(n, low, 20_000), chance.binomial(n, high, 20_000))
    found = sum(law.equality([a, n - a], [b, n - b]) <= level for a, b in pairs)
    assert found / 20_000 == pytest.approx(law.POWER, abs=0.003)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_false_alarms_of_a_word_are_as_rare_as_its_level(share: float) -> None:
    """The rate is computed over all outcomes near the expected ones, not simulated."""
    n, level = 8000, law.LEVEL / MOST / 4
    mean, spread = n * share, sqrt(n * share * (1 - share))
    counts = np.arange(max(0, int(mean - 7 * spread)), int(mean + 7 * spread))
    ways = [lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) for k in counts]
    mass = np.exp(ways + counts * log(share) + (n - counts) * log(1 - share))
    a, b = counts[:, None].astype(float), counts[None, :].astype(float)

    def part(seen: np.ndarray, other: np.ndarray) -> np.ndarray:
        return 2 * seen * np.log(2 * seen / (seen + other))

    g = part(a, b) + part(b, a) + part(n - a, n - b) + part(n - b, n - a)
    bound = next(value for value in np.arange(10.0, 40.0, 0.01) if p_value(value, 1) <= level)
    alarms = float((mass[:, None] * mass[None, :])[g >= bound].sum())
    assert alarms <= 1.1 * level


def test_a_place_lies_behind_the_first_token() -> None:
    draws = [law.words(f" {word} is red.") for word in ("it", "he") for _ in range(5)]
    split = [(*draw[:2], end) for draw in draws for end in (" red", " green")]
    assert law.find_split(split, [" it", " he"]) is not None
    prefix, share = law.find_split(split, [" it", " he"])  # type: ignore[misc]
    assert (len(prefix), share) == (2, 0.5)
    # If the first token may reach beyond the place, a server may have computed it with the prompt.
    assert law.find_split(split, [" it", " he", " it is red", " he is red"]) is None


@pytest.mark.parametrize(("field", "value"), [
    ("samples", 7999), ("minutes", float("nan")), ("concurrency", 1), ("temperature", -1.0),
])  # fmt: skip
def test_plans_are_checked(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=field):
        ServerPlan(**{field: value})


def test_what_the_page_says(tmp_path: Path) -> None:
    found = certified(ScriptedServer(0, spoils=("two",)))
    facts = {"plain": "m|m", "speculative": '<m> with {"drafts": 1}'}
    listed = page.parts(found, facts)
    text, html = page.markdown_page("Title", listed), page.html_page("Title", listed)
    assert "FAIL" in text
    assert "of speculation, not of quality" in text
    assert "m\\|m" in text
    assert "&lt;m&gt;" in html
    assert "' other'" in text
    assert "law of draws above temperature 0 was left out" in text
    record = json.loads(json.dumps(page.server_record(found, facts), allow_nan=False))
    assert (record["verdict"], record["plan"]["max_tokens"]) == ("fail", 8)
    assert len(record["tokens"][0]["differences"]) == 1
