"""What continuous integration says of skipped tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.skipped import main

REPORT = """<testsuites><testsuite>
<testcase name="a"><skipped message="no GPU"/></testcase>
<testcase name="b"><skipped message="no GPU"/></testcase>
<testcase name="c"><skipped message="no browser: install one"/></testcase>
<testcase name="d"/>
</testsuite></testsuites>"""


def test_a_test_that_could_have_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "tests.xml"
    report.write_text(REPORT)
    assert main(str(report)) == 1
    said = capsys.readouterr().out
    assert "skipped    2  no GPU" in said
    assert "could have run: 'no browser: install one'" in said
    assert main(str(report), "no browser") == 0
