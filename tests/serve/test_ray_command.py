"""`paradecode serve --ray` gives Ray the right settings, and refuses wrong ones at once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from paradecode.cli import app
from paradecode.core.errors import InvalidInput


def refused(arguments: list[str]) -> str:
    with pytest.raises(InvalidInput) as error:
        app(["serve", *arguments], standalone_mode=False)
    return str(error.value)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    command = import_module("paradecode.cli.serve")
    known = command.find_spec
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "ray" else known(name))
    assert "pip install -e '.[ray]'" in refused(["--ray"])
    assert "pip install -e '.[ray]'" in refused(["--ray-address", "auto"])


def test_options_that_need_ray() -> None:
    assert "--ray" in refused(["--max-replicas", "3"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--replicas", "0"], "--replicas: 0 "),
     (["--replicas", "4", "--max-replicas", "2"], "give 4 to"),
     (["--replicas", "5000"], "1 to 4096")],
)  # fmt: skip
def test_what_is_refused(arguments: list[str], told: str) -> None:
    pytest.importorskip("ray.serve")
    assert told in refused(["--ray", *arguments])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    pytest.importorskip("ray.serve")
    deploy = import_module("paradecode.serve.ray.deploy")
    seen: list[Any] = []

    def run(settings: Any, scaling: Any, announce: Any) -> None:
        seen.append((settings, scaling))
        announce("http://here")

    def deploy_to(address: str, settings: Any, scaling: Any) -> str:
        seen.append((address, scaling))
        return "http://there"

    monkeypatch.setattr(deploy, "run", run)
    monkeypatch.setattr(deploy, "deploy_to", deploy_to)
    return seen


def test_what_ray_is_told(runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", "--ray", "a=x", "b=y", "--replicas", "2", "--max-replicas", "6",
                 "--threads", "3", "--batch", "8"]  # fmt: skip
    app(arguments, standalone_mode=False)
    ((settings, scaling),) = runs
    assert [model.name for model in settings.models] == ["a", "b"]
    assert (scaling.replicas, scaling.most, scaling.ongoing) == (2, 6, 4)
    assert (scaling.cpus, scaling.gpus) == (6, 0)  # A worker of each model, three threads each.
    assert "ready: http://here/v1 serves a, b" in capsys.readouterr().out


def test_a_running_cluster(runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    app(
        ["serve", "x", "--ray-address", "auto", "--device", "cuda", "--tensor-parallel-size", "2"],
        standalone_mode=False,
    )
    ((address, scaling),) = runs
    assert (address, scaling.replicas, scaling.gpus) == ("auto", 1, 2)
    assert "ready: http://there/v1" in capsys.readouterr().out


def test_no_cluster_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.serve")
    from paradecode.serve.pool import Served
    from paradecode.serve.ray.deploy import Scaling, deploy_to
    from paradecode.serve.settings import ServerSettings
    from paradecode.serve.worker.settings import WorkerSettings

    def init(**settings: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", init)
    settings = ServerSettings(models=(Served("x", WorkerSettings()),))
    with pytest.raises(InvalidInput, match=r"--ray-address.*Could not find"):
        deploy_to("auto", settings, Scaling())
