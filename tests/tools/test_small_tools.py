"""Results resume, skipped tests are reported, and each planted mistake has a place and a test."""

from pathlib import Path

import pytest

from repository import ROOT
from tools.mutants import Mistake, listed
from tools.script import save, saved, stamped
from tools.skipped import main


def test_a_result_goes_on_only_where_it_is_of_the_same_run(tmp_path: Path) -> None:
    out, facts = tmp_path / "figure.json", {"rounds": 3, "sizes": (1, 2)}
    assert saved(None, "rows", facts) == saved(out, "rows", facts) == []
    save(stamped(**facts, rows=[{"batch": 1}]), out)
    assert saved(out, "rows", facts) == [{"batch": 1}]
    assert saved(out, "rows", {**facts, "rounds": 5}) == []
    save({**stamped(**facts, rows=[{"batch": 1}]), "commit": "another"}, out)
    assert saved(out, "rows", facts) == []


REPORT = """<testsuites><testsuite>
<testcase name="a"><skipped message="no GPU"/></testcase>
<testcase name="b"><skipped message="no GPU"/></testcase>
<testcase name="c"><skipped message="no browser: install one"/></testcase>
<testcase name="d"/>
</testsuite></testsuites>"""


def test_a_test_that_could_have_run_is_told(tmp_path, capsys):
    report = tmp_path / "tests.xml"
    report.write_text(REPORT)
    assert main(str(report)) == 1
    said = capsys.readouterr().out
    assert "skipped    2  no GPU" in said
    assert "could have run: 'no browser: install one'" in said
    assert main(str(report), "no browser") == 0


@pytest.mark.parametrize("mistake", listed(), ids=lambda mistake: mistake.name)
def test_each_mistake_has_its_place_and_its_test(mistake: Mistake) -> None:
    assert (ROOT / mistake.file).read_text().count(mistake.right) == 1
    assert mistake.wrong != mistake.right
    file, _, function = mistake.test.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text()
