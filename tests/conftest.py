"""Shared by all tests: a browser, costs measured once, and settings for busy machines."""

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from browser import Browser, find_browser
from paradecode.backends.interface import Backend
from paradecode.core.head import Head, HeadDraft
from paradecode.core.tree import TokenTree
from paradecode.engine.cost import CostCurve
from paradecode.llm import LLM
from repository import ROOT
from tiers import ALL_EXAMPLES, mark_wide

sys.path.insert(0, str(ROOT))  # The developers' tools are not part of the package.

# A shell lets its background jobs ignore Ctrl-C, and their child processes inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # Until all tests are collected: imports and collection leave little garbage.

# Hypothesis has no deadlines and does not complain about slow first draws. CI takes
# --hypothesis-profile thorough.
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", steady, max_examples=ALL_EXAMPLES)
settings.register_profile("quick", steady, max_examples=ALL_EXAMPLES // 5)
settings.load_profile("quick")

# Each of several test processes gets cores of its own. Otherwise threads that wait for one another
# would also wait for another process.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    process = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    processes = min(int(os.environ["PYTEST_XDIST_WORKER_COUNT"]), len(cores))
    os.sched_setaffinity(0, cores[process % processes :: processes])


@pytest.hookimpl(tryfirst=True)  # This runs before -m selects tests.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_wide(items)


def pytest_collection_finish() -> None:
    """Let PyTorch use one thread, and keep old objects out of garbage collections.

    The models are too small to be shared among threads. The collector would otherwise look at new
    objects every 700 allocations, which takes a tenth of the time of many tests.
    """
    # It is not imported at the top: the process that only distributes tests would import it first.
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def costs_are_measured_once() -> Iterator[None]:
    """Measure one quick cost curve for each model and process, and not one for each ``LLM``."""
    from paradecode.engine import resources

    measured: dict[str, CostCurve] = {}

    def obtain(backend: Backend, pages: int) -> CostCurve:
        key = repr((backend.name, backend.config))
        if key not in measured:
            measured[key] = measure(backend, pages)
        return measured[key]

    measure = resources.obtain
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "obtain", obtain)
        yield


@pytest.fixture(scope="session", autouse=True)
def shipped_models_are_read_once() -> Iterator[None]:
    """Read the catalogue's models once, since no test changes config, weights or tokenizer."""
    from paradecode.models import catalogue

    paths = {entry.path for entry in catalogue.ENTRIES}
    read, once = catalogue._named, cache(catalogue._named)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            catalogue, "_named", lambda path, name: (once if path in paths else read)(path, name)
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Build the command line once: it takes typer 30 ms, and tests run hundreds of commands."""
    from typer import main, testing

    once = cache(main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "get_command", once)
        patch.setattr(testing, "_get_command", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def replays_keep_the_caches() -> Iterator[None]:
    """Let a replay read 4 kB after a forward instead of 32 MB, to empty the processor's caches.

    No test is about steps that begin with empty caches.
    """
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("paradecode_lab") is not None:  # The engine's wheel is tested alone.
            from paradecode_lab.measure.replay import between

            patch.setattr(between, "FLUSHED", 4096)
        yield


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """Open the smallest model that is shipped."""
    with LLM("paradecode/tiny-autoregressive", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """Start an OpenAI-compatible server with known behaviour."""
    from fake_openai import FakeServer

    opened = FakeServer()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def head_drafts(monkeypatch: pytest.MonkeyPatch) -> list[HeadDraft]:
    """Record the drafts that heads are asked for, in their order."""
    from paradecode.engine import engine

    asked, run = list[HeadDraft](), engine.drafts_of

    def seen(backend: Any, head: Head, drafts: Sequence[HeadDraft]) -> list[TokenTree]:
        asked.extend(drafts)
        return run(backend, head, drafts)

    monkeypatch.setattr(engine, "drafts_of", seen)
    return asked


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: install Chromium to test the page as people see it")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    try:
        yield opened
    finally:
        opened.close()
