"""Tests the comparison of methods with plain decoding on a user's prompts."""

import sys

import pytest

import paradecode
from paradecode import LLM
from paradecode.core.errors import InvalidInput
from paradecode.timing import comparison
from paradecode.timing.other_load import OtherLoad

SUFFIX = "suffix(budget=fixed)"
"""A spec whose drafts do not depend on the measured cost of a forward."""
PROMPTS = ["copy: Ben Sam Tom", "sort: Sam Ben", "copy: Art Ben Art Ben"]


def test_every_method_has_a_row(llm: LLM) -> None:
    table = paradecode.compare(PROMPTS, [SUFFIX, "jacobi"], model=llm, max_tokens=16)
    assert [row["method"] for row in table][:2] == ["greedy", SUFFIX]
    assert [row["same tokens"] for row in table] == [3, 3, 3]
    assert table[0]["speed-up"] == table[0]["lowest"] == table[0]["tokens a forward"] == 1.0
    drafted = [llm.chat(text, max_tokens=16, decoder=SUFFIX, salt="one").stats for text in PROMPTS]
    made = sum(stats.generated for stats in drafted)
    assert table[1]["tokens a forward"] == made / sum(stats.forwards for stats in drafted)


def test_a_table_is_text_and_html(llm: LLM) -> None:
    table = paradecode.compare("copy: Ben", "suffix", model=llm, max_tokens=4)
    head, plain, *_ = str(table).splitlines()
    assert head.split()[:2] == ["method", "guarantee"]
    assert plain.split()[:2] == ["greedy", "exact"]
    assert "<td>suffix</td>" in table._repr_html_()
    assert "only an impression" in str(table)
    assert "only an impression" in table._repr_html_()


def test_doubts_stand_below_the_table(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherLoad, "look", lambda self: (1.0, 0.7))
    monkeypatch.setattr(comparison, "is_suspicious", lambda *given: True)
    table = paradecode.compare(PROMPTS, "suffix", model=llm, max_tokens=4)
    suspicious, busy = table.notes
    assert suspicious.startswith("suffix: Suspicious")
    assert busy.startswith("Other processes")


def test_rows_are_a_frame_where_pandas_is(monkeypatch: pytest.MonkeyPatch) -> None:
    table = paradecode.methods()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="pip install pandas"):
        table.frame()
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    assert isinstance(table.frame(), pandas.DataFrame)
    assert list(table.frame()["method"]) == [row["method"] for row in table]


def test_nothing_to_compare_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidInput, match="method"):
        paradecode.compare(PROMPTS, "no-such-method", model=llm)
    with pytest.raises(InvalidInput, match="messages"):
        paradecode.compare([], "suffix", model=llm)
