"""Fixtures for several steps in one call: equal costs, and how many steps each call made."""

from typing import Any

import pytest

from paradecode.engine import engine as engine_module
from paradecode.engine import multi_step
from paradecode.engine.cost import OVERHEAD


@pytest.fixture
def same_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give engines with one and with several steps a call the same costs, so drafts are equal."""
    monkeypatch.setattr(multi_step, "OVERHEAD", OVERHEAD)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many steps each call of the engine has made."""
    calls: list[int] = []
    make = multi_step.make_steps

    def counted(*arguments: Any) -> int:
        calls.append(make(*arguments))
        return calls[-1]

    monkeypatch.setattr(engine_module, "make_steps", counted)
    return calls
