"""Fixtures: a tiny model, and a server over a fake pool that each test controls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from tiny_folder import write_folder

if TYPE_CHECKING:
    from http_server import Running


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny autoregressive model, into which no test writes."""
    return str(write_folder(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture
def llm(folder: str) -> Iterator[LLM]:
    """The tiny model with a worker's settings, and little memory."""
    with LLM(folder, threads=1, limits=Limits(batch=8, step_tokens=64, kv_tokens=8192)) as model:
        yield model


@pytest.fixture(scope="session", autouse=True)
def workers_are_forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start workers as forks of one process, which takes a tenth of the time."""
    if sys.platform != "linux" or find_spec("pydantic") is None:
        yield
        return
    from worker_forks import Nursery

    from paradecode.serve import spare

    nursery = Nursery(tmp_path_factory.mktemp("costs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare, "_start", nursery.start)
        yield
    nursery.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    from http_server import FakePool, running, settings  # Skips where the extra is not there.

    with running(settings(), FakePool()) as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Running:
    shared.pool.reset()
    return shared
