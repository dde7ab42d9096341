"""Tests of the table of trained heads."""

import json
from pathlib import Path

import pytest

from paradecode.core.errors import InvalidInput
from paradecode.core.trace import Stats
from paradecode.methods.specs import parse
from paradecode_lab.measure.paired import PairedRun
from paradecode_lab.training.heads.initial import METHODS
from repository import ROOT
from tools.figures import heads
from tools.figures.heads import BUDGETS, read_run, row_of, spec_of


def run_folder(folder: Path, method: str) -> Path:
    (folder / "head").mkdir(parents=True)
    (folder / "head" / "model.safetensors").write_bytes(bytes(1000))
    report = {"method": method, "model": "m", "plan": {"steps": 7}, "tokens": 5,
              "acceptance": {"tokens_a_forward": 1.5}}  # fmt: skip
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    log = "".join(f'{{"step": 1, "seconds": {now}}}\n' for now in (1.0, 2.0, 0.5, 3.0))
    (folder / "log.jsonl").write_text(log, "utf-8")
    return folder


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_head_that_can_be_trained_has_its_rows(method, budget, tmp_path):
    run = read_run(run_folder(tmp_path / method, method))
    spec = parse(spec_of(run, budget))
    assert spec.guarantee == "exact"
    assert (run["bytes"], run["held_out"]) == (1000, 1.5)
    assert run["seconds"] == 5.0  # The training was interrupted once.


def test_a_training_that_goes_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="let its training end"):
        read_run(tmp_path)


def test_a_row_says_what_a_draft_costs_and_what_it_saves() -> None:
    def run(method: str, **stats: float) -> PairedRun:
        made = Stats(generated=11, first_tokens=1, **stats)  # type: ignore[arg-type]
        return PairedRun(method, "p", "chat", made, (), (1, 2))

    runs = [
        run("greedy", forwards=11, decode_seconds=1.0),
        run("head", forwards=5, decode_seconds=0.5, other_model_seconds=0.04, decoder_seconds=0.01,
            drafted=20),
    ]  # fmt: skip
    row = row_of(runs, "head", {"head": "x"})
    assert row["draft_ms"] == pytest.approx(8)
    assert row["tokens_a_forward"] == 2.2
    assert row["speed_up"]["value"] == pytest.approx(2)
    assert row["rows_a_forward"] == 4
    assert row["equal"] == row["prompts"] == 1
    assert row["groups"]["chat"]["value"] == pytest.approx(2)
    table = heads.markdown(
        heads.COLUMNS, [row | {"bytes": 0, "steps": "", "held_out": None, "budget": "auto"}]
    )
    assert "| x | auto |" in table


def test_the_page_has_what_was_measured() -> None:
    made = json.loads((ROOT / "bench" / "results" / "all_heads.json").read_text("utf-8"))
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert {row["head"] for row in made["heads"]} >= {*METHODS}
    assert heads.shown(made["heads"]) in page
