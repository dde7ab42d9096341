"""The journal of searches counts only complete questions, and other settings start another run."""

import json
from pathlib import Path

import pytest

from paradecode.backends.interface import PAGE
from paradecode.completion import SearchedBranch
from tools.figures import searches
from tools.figures.searches import MEASURED, chosen


def record(number: int, search: str, seconds: float) -> dict[str, object]:
    measured = dict.fromkeys(MEASURED, 1) | {"seconds": seconds}
    return {"number": number, "search": search, **measured}


def test_no_search_pays_for_the_prompt_alone(tmp_path: Path, monkeypatch) -> None:
    """The time of no search includes the prompt.

    A search of one sample runs three times, and none of the runs computes the prompt's pages.
    """
    again = {"again": "best-of(n=1)", "and again": "best-of(n=1)"}
    monkeypatch.setattr(searches, "SEARCHES", {"one sample": "best-of(n=1)", **again})
    monkeypatch.setattr(searches, "CHOSEN", {})
    journal = tmp_path / "j"
    asked = {
        "model": "paradecode/tiny-autoregressive", "task": "word-problem", "tasks": 2,
        "max-tokens": 8, "journal": journal, "hint": "Ann " * 4 * PAGE,
    }  # fmt: skip
    given = [str(part) for name, value in asked.items() for part in (f"--{name}", value)]
    monkeypatch.setattr("sys.argv", ["searches", *given])
    searches.main()
    _, *records = map(json.loads, journal.read_text().split("\n")[:-1])
    assert len(records) == 2 * 3
    assert max(record["rows"] for record in records) < 2 * PAGE


@pytest.mark.parametrize(("search", "checks", "text"), [
    ("best-of(n=4)", True, "so 4"), ("best-of(n=4)", False, "it is 5"),
    ("majority(n=4)", False, "The answer is 4."), ("", False, "it is 5"),
    ("majority(n=4,votes=weighted)", False, "The answer is 4."),
])  # fmt: skip
def test_what_is_chosen_among_branches(search: str, checks: bool, text: str) -> None:
    made = [("The answer is 4.", 5, "stop", -0.5), ("it is 5", 7, "stop", -0.1),
            ("so 4", 3, "stop", -0.9), ("cut 6", 9, "length", -0.2)]  # fmt: skip
    tree = [SearchedBranch(None, said, n, why, score, False) for said, n, why, score in made]

    def checker(prompt: str, texts: list[str]) -> list[float]:
        return [float(said == "so 4") for said in texts]

    assert chosen(search, tree, checker, checks) == text
