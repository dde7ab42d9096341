"""The conformance figure fails a line whose method had no draft token accepted."""

from types import SimpleNamespace

import pytest

from paradecode.core.trace import Stats
from paradecode.testing.conformance import FEWEST
from tools.figures.conformance import METHODS, RESTING, compared


def outputs(accepted: int, *texts: list[int]) -> list[SimpleNamespace]:
    stats = Stats(forwards=4, drafted=accepted + 1, accepted=accepted)
    return [SimpleNamespace(token_ids=text, stats=stats) for text in texts]


@pytest.mark.parametrize(("method", "accepted", "text", "fails"), [
    ("suffix", FEWEST, [1, 2], ""), ("suffix", FEWEST - 1, [1, 2], "draft tokens accepted"),
    ("suffix", FEWEST, [1, 3], "outputs differ"), ("auto", 0, [1, 2], ""),
    ("auto", 0, [1, 3], "outputs differ"),
])  # fmt: skip
def test_a_line_fails_that_differs_or_drafts_nothing(method, accepted, text, fails):
    row = compared(method, 0.0, outputs(accepted, text), outputs(0, [1, 2]))
    assert row["accepted"] == accepted
    assert fails in row["fails"]
    assert bool(row["fails"]) == bool(fails)


def test_what_may_rest_is_measured() -> None:
    assert {*RESTING} <= {*METHODS}
