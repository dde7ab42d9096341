"""The pool tells each worker how many threads to use."""

from __future__ import annotations

import pytest

from paradecode.serve import pool
from paradecode.serve.pool import Pool, Served, share_cores
from paradecode.serve.worker.settings import WorkerSettings

FREE = WorkerSettings()


@pytest.mark.parametrize(
    ("cores", "models", "threads"),
    [
        (8, [Served("a", FREE)], [None]),  # One worker takes what its backend chooses.
        (8, [Served("a", FREE, 2)], [4]),
        (7, [Served("a", FREE, 2), Served("b", FREE)], [2, 2]),
        (2, [Served("a", FREE, 5)], [1]),
        (8, [Served("a", WorkerSettings(threads=6)), Served("b", FREE)], [6, 4]),
        (8, [Served("a", WorkerSettings(draft_model="d", draft_threads=1), 2)], [3]),
        (8, [Served("a", WorkerSettings(draft_threads=1), 2)], [4]),  # A head's: it takes turns.
        (8, [Served("a", WorkerSettings(device="cuda")), Served("b", FREE)], [None, 4]),
    ],
)
def test_workers_share_the_cores(
    cores: int, models: list[Served], threads: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "default_threads", lambda: cores)
    assert [model.worker.threads for model in share_cores(models)] == threads
    told = [group.served.worker.threads for group in Pool(models)._groups.values()]
    assert told == threads
    assert [model.replicas for model in share_cores(models)] == [m.replicas for m in models]
