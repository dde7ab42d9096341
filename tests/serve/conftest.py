"""The server over a pool that answers what a test wants: one a file, as new for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from http_server import Running


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    from http_server import FakePool, running, settings  # Skips where the extra is not there.

    with running(settings(), FakePool()) as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Running:
    shared.pool.reset()
    return shared
