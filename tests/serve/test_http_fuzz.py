"""Five hundred hostile requests each get an answer, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_folder import write_folder

pytest.importorskip("uvicorn")

serving = pytest.importorskip("tools.serving.server")

from tools.serving.fuzz import fuzz

REQUESTS = 500


@pytest.mark.wide
def test_hostile_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Memory is the subject of the long run (tools/serving/fuzz.py). Here caches still fill, and
    # nobody waits until freed memory has been returned.
    monkeypatch.setattr(serving, "PERIOD", 0.1)
    models = [f"{name}={write_folder(tmp_path / kind, kind)}"
              for name, kind in (("tiny", "llama"), ("canvas", "sdar"))]  # fmt: skip
    with serving.serving(models, tmp_path / "log") as server:
        assert not fuzz(server, 0, REQUESTS // 4, seed=1)["wrong"]
        before = server.settled()
        kinds = fuzz(server, REQUESTS // 4, REQUESTS, seed=1)
        after = server.settled()
        assert after.restarts == 0
        assert after.workers < before.workers * 1.1
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert '"crash"' not in log
    assert not kinds["wrong"]
    assert kinds["200"] > 20
    assert kinds["400"] > 100
