"""`paradecode tune` writes a profile that LLM and the commands load; other files are refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paradecode import LLM
from paradecode.cli import app
from paradecode.core.errors import InvalidInput
from paradecode.methods.choice import SCHEMA, Profile
from paradecode.models.catalogue import open_model
from paradecode.testing.draft_heads import Sizes, random_head
from paradecode_lab.measure.replay import Recording, player, replayable, timing
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tune import candidate, search, tuning
from paradecode_lab.measure.tune.candidate import CandidateMethod, with_head
from paradecode_lab.measure.tune.search import Costs, Scores
from paradecode_lab.measure.tune.tuning import Confirmed
from program import in_process, quick_costs

GOOD = {"schema": SCHEMA, "decoder": "suffix+prompt-lookup(max_ngram=4)", "model": "m"}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    words = "one two three four five six seven eight nine ten"
    lines = [
        {"id": f"p{n}", "group": "ab"[n % 2], "max_tokens": 16,
         "turns": [f"Repeat this line {n} times: {words}"]}
        for n in range(6)
    ]  # fmt: skip
    workload = folder / "w.jsonl"
    workload.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    profile = folder / "profile.json"

    def few(recording: Recording) -> list[str]:
        names = ["prompt-lookup", "copyspec", "suffix"]
        assert set(names) < set(replayable(recording))
        return names

    # The search is shortened, since a full one takes minutes.
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        patch.setattr(timing, "MOST_REQUESTS", 1)
        patch.setattr(player, "COLD_STEPS", 2)
        patch.setattr(candidate, "LENGTHS", (4, 8))
        patch.setattr(tuning, "replayable", few)
        patch.setattr(search, "FIRST", 2)
        patch.setattr(search, "SECOND", 1)
        patch.setattr(search, "STRIDES", 1)
        config = open_model().config
        head = random_head(
            "eagle3", config, folder / "head", sizes=Sizes(2, 1, 64, 64, (1, 2, 3), 64)
        )
        asked = ["tune", str(profile), "--workload", str(workload), "--head", str(head)]
        run = CliRunner().invoke(app, asked)
    assert run.exit_code == 0, run.output
    return profile


@pytest.mark.wide
def test_a_profile_says_what_was_measured_and_why(tuned):
    profile = Profile.load(tuned)
    record = profile.record
    assert profile.model == "smollm2-135m-instruct"
    assert len(record["prompts"]["tuning"]) == 4
    assert len(record["prompts"]["held_out"]) == 2
    assert record["decoder"] == record["measured"][0]["decoder"]
    # The method that users have without a profile is always measured along with the others.
    default = "prompt-lookup(table='smollm2-135m-instruct')"
    assert default in {row["decoder"] for row in record["measured"]}
    # A head is tried alone and fused with copying methods. This head is random.
    heads = [row["decoder"] for row in record["measured"] if "eagle(" in row["decoder"]]
    alone = next(text for text in heads if text.startswith("eagle("))
    assert {f"{first}+{alone}" for first in (default, "suffix", "prompt-lookup")} < set(heads)
    assert "eagle(" not in record["decoder"]
    for row in record["measured"]:
        assert row["equal_to_plain"] == row["prompts"] == 2
        assert row["speed_up"]["low"] <= row["speed_up"]["value"] <= row["speed_up"]["high"]
        assert row["tokens_a_forward"] >= 1
    assert record["too_short"].startswith("Too short: 2 prompts of ")
    assert {"date", "commit", "machine"} <= record.keys()
    costs = Costs.of(record["costs"])
    assert len(costs.python) > 10
    assert costs.record() == Costs.of(json.loads(json.dumps(costs.record()))).record()


@pytest.mark.wide
@pytest.mark.parametrize(("key", "value"), [
    ("curve", None), ("curve", {"rows": [2, 1], "contexts": [1], "seconds": [[1, 1]]}),
    ("curve", {"rows": [1], "contexts": [1], "seconds": [[float("nan")]]}), ("timing", {}),
    ("python", {"a": "b"}), ("python", {"a": 1e99}), ("python", [1]),
])  # fmt: skip
def test_costs_that_are_none_are_refused(tuned, key, value):
    record = dict(Profile.load(tuned).record["costs"])
    with pytest.raises(InvalidInput, match="costs"):
        Costs.of({**record, key: value})
    for other in (None, 3, [], {}):
        with pytest.raises(InvalidInput, match="costs"):
            Costs.of(other)


@pytest.mark.wide
def test_a_profile_is_loaded_and_stays_exact(tuned):
    with LLM(profile=tuned) as llm:
        assert str(llm.decoder) == Profile.load(tuned).decoder
        prompt = "Say: a b c d e f g. Again: a b c"
        parallel = llm.complete(prompt, max_tokens=12)
        assert parallel.token_ids == llm.complete(prompt, max_tokens=12, decoder=None).token_ids
    asked = ["generate", "Hello", "--max-tokens", "4", "--profile", str(tuned), "--json"]
    run = CliRunner().invoke(app, asked)
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["decoder"] == Profile.load(tuned).decoder


def test_a_head_that_pays_is_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that saves time is chosen by measurement, because a replay cannot run it."""
    copying = CandidateMethod.of("suffix")
    head = CandidateMethod((("eagle", (("head", "h"),)),))
    rows = [
        Confirmed(one, Interval(value, value, value), {}, {}, 2, 2, 9.0, 2.0, False)
        for one, value in ((copying.fused(head), 1.5), (copying, 1.2), (head, 1.25))
    ]
    scores = Scores(None, {})  # type: ignore[arg-type]
    monkeypatch.setattr(Scores, "speed", lambda self, one, many: 0.0 if one != copying else 9.0)
    why = tuning._why(rows[0], rows, scores, ["p"])
    assert [(row["part"], row["speed_up_without"]) for row in why] == [
        ("suffix", 1.25), ("eagle", 1.2),
    ]  # fmt: skip
    assert [row["factor"] for row in why] == [1.5 / 1.25, 1.5 / 1.2]


def test_a_group_decides_where_it_has_prompts_enough() -> None:
    def measured(slow: float, prompts: int) -> Confirmed:
        groups = {"a": Interval(1.5, 1.4, 1.6), "b": Interval(slow, slow, slow)}
        sizes = {"a": 5, "b": prompts}
        return Confirmed(
            CandidateMethod.of("suffix"), groups["a"], groups, sizes, 7, 7, 9.0, 2.0, False
        )

    assert [measured(0.9, n).slows for n in (1, 2, 3, 4)] == [False, False, True, True]
    assert not measured(0.98, 4).slows


def test_a_head_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"head|config"):
        with_head(str(tmp_path))


def test_another_model_is_warned_of(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(GOOD), "utf-8")
    with pytest.warns(UserWarning, match="tuned for m"):
        LLM(profile=path).close()


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", "[" * 100_000, "\x00", '{"schema": "other/1"}',
    json.dumps({**GOOD, "decoder": 3}), json.dumps({**GOOD, "decoder": "nothing-like-it"}),
    json.dumps({**GOOD, "decoder": "prompt-lookup(max_ngram=900)"}),
    json.dumps({"schema": SCHEMA, "decoder": "greedy"}),
])  # fmt: skip
def test_what_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidInput):
        Profile.load(path)


def test_a_file_that_is_not_there_and_two_choices_at_once(tmp_path, monkeypatch, capsys):
    with pytest.raises(InvalidInput, match="profile"):
        LLM(profile=tmp_path / "missing.json")
    path = tmp_path / "p.json"
    path.write_text(json.dumps(GOOD), "utf-8")
    with pytest.raises(InvalidInput, match="leave decoder"):
        LLM(profile=path, decoder="suffix")
    asked = ["generate", "x", "--profile", str(path), "--decoder", "suffix"]
    status, error = in_process(asked, monkeypatch, capsys)
    assert status == 2
    assert "--profile" in error
