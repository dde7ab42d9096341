"""A tiny model; and the server over a pool that answers what a test wants, as new for each test."""

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
    """A tiny autoregressive model; nobody writes into it."""
    return str(write_folder(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture
def llm(folder: str) -> Iterator[LLM]:
    """The tiny model as workers have it, with little room."""
    with LLM(folder, threads=1, limits=Limits(batch=8, step_tokens=64, kv_tokens=8192)) as model:
        yield model


@pytest.fixture(scope="session", autouse=True)
def workers_are_forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """They start in a tenth of the time."""
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
