"""Monitors in other processes give the same answers, and their failures stay there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paradecode import LLM
from paradecode.constraints.python import apart
from paradecode.constraints.python.apart import MonitorApart
from paradecode.constraints.python.masks import MonitoredText
from paradecode.constraints.python.monitor import AttributesExist
from paradecode.core.errors import InvalidInput
from paradecode.core.handoff import wait_for
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Limits
from paradecode.engine.request import GenerationRequest
from paradecode.models.vocabulary import spelling
from patience import until
from tiny_folder import write_folder

FILES = {"a.py": "class A:\n    def go(self): ...\n    x = 1\n\nb = A()\n"}
TEXTS = (b"import a\na.", b"import a\na.A().", b"import a\na.b.", b"x.", b"", b".", b"'a'.",
         "é = 1\né.".encode(), b"\xff.", b"import a\na.b.x.")  # fmt: skip

READS = "import sys; sys.stdin.readline(); sys.stdin.readline(); print('null', flush=True)\n"
HOSTILE = {
    "hangs": "import time\nfor _ in sys.stdin: time.sleep(600)",
    "spins": "while True: pass",
    "forks": "import os, time\nfor _ in range(3): os.fork()\ntime.sleep(600)",
    "exits": "import os\nfor _ in sys.stdin: os._exit(3)",
    "is killed": "import os\nfor _ in sys.stdin: os.kill(os.getpid(), 9)",
    "says nonsense": "for _ in sys.stdin: print('}{', flush=True)",
    "writes for ever": "while True: sys.stdout.write('[' * 65536)",
    "reads nothing": "import time; time.sleep(600)",
}


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    for one in [*apart._kept]:
        one.end()
    apart._kept.clear()


def alive(group: int) -> list[str]:
    """Return the running processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found += [stat.parent.name] if int(fields[2]) == group and fields[0] != "Z" else []
    return found


def test_its_answers_are_the_monitors() -> None:
    monitor, here = MonitorApart(FILES), AttributesExist(FILES)
    for text in TEXTS:
        assert monitor.names(text) == here.names(text), text
    with pytest.raises(InvalidInput, match=r"'b\.py' is not usable; give Python source"):
        MonitorApart({"b.py": "def"})


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_goes_wrong_ends_one_question(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, "-c", READS + HOSTILE[kind])
    monitor = MonitorApart(FILES, command)
    monkeypatch.setattr(apart, "PATIENCE", 1.0)
    assert monitor._process is not None
    group = monitor._process.pid
    with pytest.raises(InvalidInput, match="simplify it"):
        monitor.names(b"import a\na." + b" " * (1 << 17) + b"b.")
    until(lambda: not alive(group))
    monkeypatch.undo()
    monitor._command = apart.COMMAND
    assert monitor.names(b"import a\na.") == AttributesExist(FILES).names(b"import a\na.")


@pytest.mark.slow
def test_time_and_memory_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real inputs reach both bounds: code that is parsed many times, and a file of many nodes."""
    monkeypatch.setattr(apart, "PATIENCE", 300.0)
    monitor = MonitorApart(FILES)
    with pytest.raises(InvalidInput, match="simplify it"):
        monitor.names(b"x = [1]\n" * 60_000 + b"def f(:\n" * 20 + b"x.")
    with pytest.raises(InvalidInput):
        MonitorApart({"a.py": "x=a\n" * 260_000})


@pytest.mark.wide
def test_few_processes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST", 2)
    monitors = [MonitorApart({"a.py": f"x{i} = 1"}) for i in range(4)]
    assert sum(monitor._process is not None for monitor in monitors) == 2 == len(apart._kept)
    for i, monitor in enumerate(monitors):
        assert f"x{i}".encode() in (monitor.names(b"import a\na.") or ())
    assert len(apart._kept) <= 2


class Slow:
    """A monitor that answers when the test lets it."""

    triggers = frozenset(range(256))

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []
        self.at_once = False

    def ends(self, value: int) -> bool:
        return True

    def names(self, text: bytes) -> None:
        if not self.at_once:
            self.asked.append(Future())
            wait_for(self.asked[-1])


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = str(write_folder(tmp_path_factory.mktemp("llama"), "llama"))
    with LLM(folder, threads=1, limits=Limits(batch=4, kv_tokens=4096)) as model:
        yield model


def plain(llm: LLM) -> GenerationRequest:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (request,) = llm.requests(llm.encode("abcab"), params, {})
    return request


def monitored(llm: LLM, monitor: Slow) -> GenerationRequest:
    tokenizer, size = llm.tokenizer, llm.config.vocab_size
    spellings = [b"" if t in llm.config.eos_tokens else spelling(tokenizer, t) for t in range(size)]
    return replace(plain(llm), constraint=MonitoredText(monitor, spellings, b"x.", waits=True))


def test_a_request_sits_out_while_its_monitor_computes(llm: LLM) -> None:
    monitor, engine = Slow(), llm.engine
    waiting = engine.add(monitored(llm, monitor))
    other = engine.add(plain(llm))
    while not other.finished:  # No step waits for the answer, which comes behind them.
        engine.step()
        engine.check()
    assert monitor.asked
    assert not waiting.output
    monitor.at_once = True
    for question in monitor.asked:
        question.set_result(None)
    while not waiting.finished:
        engine.step()
        engine.check()
    assert waiting.error is None
    assert waiting.output == other.output


@pytest.mark.parametrize("how", ["cancelled", "deadline", "error"])
def test_a_request_may_end_while_it_waits(llm: LLM, how: str) -> None:
    monitor, engine = Slow(), llm.engine
    request = replace(monitored(llm, monitor), deadline=0.5 if how == "deadline" else None)
    waiting = engine.add(request)
    while not monitor.asked:
        engine.step()
    if how == "cancelled":
        engine.cancel(waiting)
    if how == "error":
        monitor.asked[-1].set_exception(InvalidInput("constraint", "python", "simplify it"))
    while not waiting.finished:
        engine.step()
    assert waiting.finish_reason == how
    assert not engine.busy
    assert all(pool.held == 0 for pool in engine.pools.values())
    engine.check()


def test_the_process_cannot_fork_or_write(tmp_path: Path) -> None:
    """The limits of the process are set before it reads its first line."""
    monitor = MonitorApart(FILES)
    assert monitor._process is not None
    limits = Path(f"/proc/{monitor._process.pid}/limits").read_text()
    for name in ("Max processes", "Max file size", "Max core file size"):
        (line,) = [line for line in limits.splitlines() if line.startswith(name)]
        assert line.removeprefix(name).split()[:2] == ["0", "0"], line
    (space,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert int(space.split()[3]) < 16 * apart.MEMORY


def test_a_process_for_constraints_loads_no_model() -> None:
    code = (
        "import sys\n"
        "import paradecode.constraints.python.apart, paradecode.constraints.trial\n"
        "print(*{'paradecode.llm', 'paradecode.engine'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
