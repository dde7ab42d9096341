"""The search finds what is better by construction, is repeatable, and keeps settings valid."""

from dataclasses import replace

import pytest
from workloads import items, recording_of, toy

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.methods.specs import methods, parse
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.replay import player
from paradecode_lab.measure.tune import search as searching
from paradecode_lab.measure.tune.candidate import CandidateMethod
from paradecode_lab.measure.tune.search import PLAIN, Scores, climb, search
from paradecode_lab.measure.tune.tuning import split
from paradecode_lab.training.ngrams.counting import count_ngrams

RECORDING = recording_of(toy(), items(6), SamplingParams(seed=1))
IDS = [request.id for request in RECORDING.requests]
NAMES = ("prompt-lookup", "copyspec")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "STRIDES", 1)
    monkeypatch.setattr(searching, "FIRST", 2)
    monkeypatch.setattr(searching, "SECOND", 1)
    monkeypatch.setattr(player, "COLD_STEPS", 2)


def free() -> Scores:
    """Return scores in which Python costs nothing, so that only forwards decide."""

    class Nothing(dict[str, float]):
        def setdefault(self, key: str, default: float = 0.0) -> float:
            return super().setdefault(key, 0.0)

    return Scores(RECORDING, Nothing())


@pytest.mark.parametrize("name", sorted(m.name for m in methods().values() if m.training == "none"))
def test_neighbours_are_other_specs_with_legal_settings(name):
    if methods()[name].family != "autoregressive" or name in (PLAIN, "unified-layer-skip"):
        pytest.skip("not a drafter")
    start = CandidateMethod.of(name)
    texts = [str(one) for one in start.neighbours({}) if one.valid]
    assert len(texts) == len(set(texts)) >= 5
    assert name not in texts
    for text in texts:
        assert str(parse(text)) == text


def test_a_default_is_left_out_again():
    changed = next(
        n for n in CandidateMethod.of("prompt-lookup").neighbours({}) if "max_ngram" in str(n)
    )
    assert "prompt-lookup" in {str(one) for one in changed.neighbours({})}


def test_fusions_carry_their_settings_to_the_spec():
    first = CandidateMethod((("prompt-lookup", (("max_ngram", 4),)),), (("budget", "fixed"),))
    both = first.fused(CandidateMethod((("suffix", ()),)))
    assert str(parse(str(both))) == str(both) == "prompt-lookup(max_ngram=4)+suffix(budget=fixed)"
    assert [part for part, _ in both.without()] == [
        "prompt-lookup", "prompt-lookup.max_ngram=4", "suffix", "budget=fixed",
    ]  # fmt: skip


def test_a_climb_finds_something_better():
    scores = free()
    start = CandidateMethod((("prompt-lookup", ()),), (("num_speculative_tokens", 4),))
    best = climb(scores, start, IDS)
    assert scores.speed(best, IDS) > 1.02 * scores.speed(start, IDS)


def test_what_python_costs_decides():
    scores = free()
    cheap, dear = CandidateMethod.of("prompt-lookup"), CandidateMethod.of("suffix")
    for one, seconds in ((cheap, 0.0), (dear, 10.0)):
        dict.__setitem__(scores.python, Scores.key(str(one), IDS), seconds)
    assert scores.speed(cheap, IDS) > 10 * scores.speed(dear, IDS)


@pytest.mark.wide
def test_the_search_beats_its_beginnings():
    scores = free()
    best = search(scores, NAMES, IDS, IDS)[0]
    assert all(scores.speed(best, IDS) >= scores.speed(CandidateMethod.of(n), IDS) for n in NAMES)
    assert scores.speed_up(best, IDS) > 1.1


def test_a_candidate_that_cannot_be_played_scores_nothing():
    assert free().speed(CandidateMethod.of("layer-skip"), IDS) == 0.0


def many(groups: str) -> list[Item]:
    one = items(1)[0]
    return [replace(one, id=str(at), prompt=str(at), group=g) for at, g in enumerate(groups)]


def test_a_third_is_held_out_from_every_group():
    tuning, held_out = split(many("aaabbbccc"), seed=3)
    assert len(held_out) == 3
    assert {item.group for item in held_out} == {item.group for item in tuning} == set("abc")
    assert not {item.id for item in tuning} & {item.id for item in held_out}
    assert [i.id for i in split(many("aaabbbccc"), seed=3)[1]] == [i.id for i in held_out]
    assert any(
        [i.id for i in split(many("aaabbbccc"), seed=s)[1]] != [i.id for i in held_out]
        for s in range(5)
    )


def test_too_small_a_workload_is_refused():
    from paradecode_lab.measure.tune.tuning import tune

    with pytest.raises(InvalidInput, match="workload"):
        tune(None, many("ab"))  # type: ignore[arg-type]


def test_a_climb_tries_the_files_that_it_is_given(tmp_path):
    path = tmp_path / "true table.ngrams"
    texts = [request.text.tolist() for request in RECORDING.requests] * 10
    count_ngrams(texts, RECORDING.model.vocab_size).save(path)
    start = CandidateMethod.of("prompt-lookup")
    best = climb(free(), start, IDS, {"prompt-lookup.table": (str(path),)})
    assert dict(best.parts[0][1]) == {"table": str(path)}
    assert parse(str(best)).settings["table"] == str(path)
