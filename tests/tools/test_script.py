"""What the scripts share."""

from __future__ import annotations

from pathlib import Path

from tools.script import save, saved, stamped


def test_a_result_goes_on_only_where_it_is_of_the_same_run(tmp_path: Path) -> None:
    out, facts = tmp_path / "figure.json", {"rounds": 3, "sizes": (1, 2)}
    assert saved(None, "rows", facts) == saved(out, "rows", facts) == []
    save(stamped(**facts, rows=[{"batch": 1}]), out)
    assert saved(out, "rows", facts) == [{"batch": 1}]
    assert saved(out, "rows", {**facts, "rounds": 5}) == []
    save({**stamped(**facts, rows=[{"batch": 1}]), "commit": "another"}, out)
    assert saved(out, "rows", facts) == []
