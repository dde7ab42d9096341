"""Forked workers behave like others when their helper processes die."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from worker_forks import Nursery, adopted


def test_imports_that_fail_are_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    nursery = Nursery(tmp_path)
    for _ in range(2):  # It may die before it is asked, or while it is.
        with pytest.raises(RuntimeError, match="ended with 1"):
            asyncio.run(nursery.start())
    nursery.close()


def test_a_worker_whose_front_has_died_does_not_wait() -> None:
    assert adopted(os.getppid(), 0.0)
    assert not adopted(-1, 0.01)
