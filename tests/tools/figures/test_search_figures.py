"""The journal of searches: whole questions count, and other settings are another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paradecode.completion import SearchedBranch
from tools.figures.searches import MEASURED, chosen, read, summed


def record(number: int, search: str, seconds: float) -> dict[str, object]:
    measured = dict.fromkeys(MEASURED, 1) | {"seconds": seconds}
    return {"number": number, "search": search, **measured}


def test_a_run_goes_on(tmp_path: Path) -> None:
    journal, settings = tmp_path / "new" / "j", {"task": "sums", "tasks": 3}
    assert read(journal, settings) == {}
    own = [record(0, "one", 1.0), record(0, "two", 4.0), record(1, "one", 9.0)]
    with journal.open("a") as file:
        file.write("".join(json.dumps(each) + "\n" for each in own))
    done = read(journal, settings)
    assert done[1, "one"] == own[2]
    one, two = summed(done, ["one", "two"])  # The second question is not whole.
    assert (one["questions"], one["seconds"], two["times"]) == (1, 1.0, 4.0)
    assert summed(done, ["one", "three"]) == []
    with pytest.raises(SystemExit, match="other settings"):
        read(journal, {**settings, "tasks": 4})


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
