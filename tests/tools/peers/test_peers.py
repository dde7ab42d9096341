"""Tests the program of `make bench` with a toy worker instead of a peer."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

peers = pytest.importorskip("tools.peers.process")

from paradecode.core.errors import InvalidInput
from patience import PATIENCE, state, until
from tools.peers.catalogue import engines, select
from tools.peers.checkout import InstallError, commands, find_source, version_of
from tools.peers.environments import Environment, install
from tools.peers.formats import FormatError, Formats, requantise, weights_of
from tools.peers.player import said_of_itself
from tools.peers.process import Worker, WorkerError
from tools.peers.suites import SUITES, find_suite

TOY = Path(__file__).with_name("toy_worker.py")
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")


@pytest.fixture
def worker(tmp_path):
    path = str(peers.WORKERS)
    made = Worker(Path(sys.executable), str(TOY), tmp_path / "log", {"PYTHONPATH": path})
    yield made
    made.kill()


def _ask(worker: Worker, *prompt: int, timeout: float = PATIENCE) -> dict:
    request = {"prompt_token_ids": prompt, "max_tokens": 3, "stop_token_ids": [2]}
    return worker.ask(request, timeout)


def test_a_worker_answers_past_the_noise(worker) -> None:
    loaded = worker.ask({"load": {}}, PATIENCE)
    assert loaded["seconds"] >= 0
    assert set(loaded["versions"]) == {"pytest"}
    assert _ask(worker, 9, 8, 7, 6)["token_ids"] == [9, 8, 7]
    assert worker.peak_bytes() > 1 << 20


def test_an_error_is_told_and_survived(worker) -> None:
    with pytest.raises(WorkerError, match="no such library"):
        worker.ask({"load": {"broken": True}}, PATIENCE)
    worker.ask({"load": {}}, PATIENCE)
    with pytest.raises(WorkerError, match="bad prompt") as caught:
        _ask(worker, 1)
    assert not caught.value.ended
    assert _ask(worker, 9)["stopped"]


def test_a_death_is_told_with_its_last_words(worker) -> None:
    worker.ask({"load": {}}, PATIENCE)
    with pytest.raises(WorkerError, match="cannot go on") as caught:
        _ask(worker, 3)
    assert caught.value.ended


def test_a_hanging_worker_is_killed(worker) -> None:
    worker.ask({"load": {}}, PATIENCE)
    with pytest.raises(WorkerError, match="no answer") as caught:
        _ask(worker, 2, timeout=0.3)
    assert caught.value.ended
    assert not Path(f"/proc/{worker._process.pid}").exists()


def test_an_idle_worker_is_stopped_and_its_time_is_counted(worker) -> None:
    worker.ask({"load": {}}, PATIENCE)
    before = worker.cpu_seconds()
    _ask(worker, 4)
    assert worker.cpu_seconds() - before >= 0.15
    until(lambda: state(worker._process.pid) == "T")  # The signal takes a moment.


def test_workers_die_with_the_harness(tmp_path) -> None:
    script = tmp_path / "harness.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(peers.WORKERS.parents[2])!r})\n"
        "from tools.peers.process import Worker\n"
        f"w = Worker(Path(sys.executable), {str(TOY)!r}, Path({str(tmp_path / 'log')!r}),"
        f" {{'PYTHONPATH': {str(peers.WORKERS)!r}}})\n"
        "w.ask({'load': {}}, 300)\nprint(w._process.pid, flush=True)\nimport os; os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    pid = int(done.stdout)
    until(lambda: state(pid) == "Z")


def test_names_and_references_fit_together() -> None:
    known = engines(["prompt-lookup", "prompt-lookup(max_ngram=2)"])
    names = [engine.name for engine in known]
    assert len(set(names)) == len(names)
    for engine in known:
        assert (engine.reference is None) == (engine.mode == "plain")
        assert engine.reference is None or engine.reference in names
        assert (peers.WORKERS / engine.worker).is_file()
    chosen = select(known, ["llama-cpp/*", "vllm/bf16"])
    assert {engine.peer for engine in chosen} == {"llama-cpp", "vllm"}
    with pytest.raises(InvalidInput, match="choose among"):
        select(known, ["llama-cpp/*", "nothing*"])


def test_suites_name_engines_that_exist() -> None:
    known = engines(weights="q4_k_m")
    of_suite = {
        name: [e.name for e in select(known, [p.format(source="q4_k_m") for p in suite.engines])]
        for name, suite in SUITES.items()
    }
    assert of_suite["quick"] == of_suite["full"] == [engine.name for engine in known]
    chosen = of_suite["main"]
    assert len(chosen) < len(known)
    assert {name.partition("/")[0] for name in chosen} >= {
        "llama-cpp", "xllamacpp", "openvino", "vllm", "transformers", "ik-llama-cpp",
        "onnxruntime-genai",
    }  # fmt: skip
    for engine in known:  # A mode is never shown without the plain mode that it refers to.
        assert engine.name not in chosen or engine.reference in (None, *chosen)
    with pytest.raises(InvalidInput, match="quick, main, full"):
        find_suite("everything")


def test_a_model_of_another_format_gives_its_name_to_engines() -> None:
    names = [engine.name for engine in engines(weights="q4_0")]
    assert len(set(names)) == len(names)
    assert {"llama-cpp/q4_0", "ik-llama-cpp/q4_0", "openvino/gguf-q4_0"} <= set(names)
    assert "llama-cpp/q4_1" not in names


def test_a_source_checkout_is_found_or_its_lack_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("A_CHECKOUT", raising=False)
    with pytest.raises(InstallError, match="set A_CHECKOUT to a source checkout"):
        install(Environment("x", (), checkout="A_CHECKOUT"), tmp_path)
    for given in (tmp_path, tmp_path / "none", Path(__file__)):
        monkeypatch.setenv("A_CHECKOUT", str(given))
        with pytest.raises(InstallError, match="A_CHECKOUT="):
            find_source("A_CHECKOUT", tmp_path / "root")
    header = tmp_path / "made" / "llama-1" / "include" / "llama.h"
    header.parent.mkdir(parents=True)
    header.touch()
    archive = shutil.make_archive(str(tmp_path / "source"), "gztar", tmp_path / "made")
    for given in (archive, header.parents[1]):
        monkeypatch.setenv("A_CHECKOUT", str(given))
        source = find_source("A_CHECKOUT", tmp_path / "root")
        assert (source / "include" / "llama.h").is_file()
        assert version_of(source) == "llama-1"
    configure, build, link = commands(source, tmp_path / "bin")
    assert configure[:2] == [str(tmp_path / "bin" / "cmake"), "-S"]
    assert "Ninja" in configure
    assert build[-1] == "llama"
    assert link[-1] == str(tmp_path / "bin" / "ik_llama_cpp")
    (source / "build").mkdir()
    (source / "build" / "CMakeCache.txt").touch()  # An existing build keeps its generator.
    assert "Ninja" not in next(commands(source, tmp_path / "bin"))


def test_a_wheel_for_lesser_processors_is_named_as_such(monkeypatch) -> None:
    class Here:
        isa = ("avx2", "fma", "avx512f", "avx512_vnni")

    monkeypatch.setattr("tools.peers.player.describe", Here)
    assert said_of_itself({"info": "CPU : AVX2 = 1 | FMA = 1 | AVX512 = 0 | REPACK = 1 |"}) == {
        "without": "avx512 avx512_vnni"
    }
    all_used = "AVX2 = 1 | FMA = 1 | AVX512 = 1 | AVX512_VNNI = 1"
    assert said_of_itself({"info": all_used, "ik_llama.cpp": "8337"}) == {"ik_llama.cpp": "8337"}
    assert said_of_itself({}) == {}


@pytest.mark.slow
def test_an_environment_is_real(tmp_path) -> None:
    missing = Environment("x", ("./no-such-package-here",))
    with pytest.raises(InstallError, match="no-such-package-here"):
        install(missing, tmp_path)
    assert not (tmp_path / "envs" / "x").exists()
    python = install(Environment("empty", ()), tmp_path)
    done = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True)
    assert "pip" in done.stdout


def test_a_peer_that_cannot_be_installed_says_why(tmp_path, monkeypatch) -> None:
    from tools.peers.environments import _run as really

    fail = "print('collecting'); raise SystemExit('ERROR: no wheel of it')"
    monkeypatch.setattr(
        "tools.peers.environments._run",
        lambda command, *rest: really(
            [sys.executable, "-c", fail if "pip" in command else ""], *rest
        ),
    )
    with pytest.raises(InstallError, match="x: ERROR: no wheel of it"):
        install(Environment("x", ("it==1",)), tmp_path)
    assert (tmp_path / "logs" / "install-x.log").is_file()
    assert not (tmp_path / "envs" / "x").exists()


def test_an_interrupted_installation_leaves_no_process(tmp_path) -> None:
    script = tmp_path / "install.py"
    script.write_text(
        "import os, signal, sys, threading, time\n"
        f"sys.path.insert(0, {str(peers.WORKERS.parents[2])!r})\n"
        "from tools.peers.environments import _run\n"
        f"path = {str(tmp_path / 'pid')!r}\n"
        "def interrupt():\n"
        "    while not (os.path.exists(path) and os.path.getsize(path)):\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        f"_run(['sh', '-c', 'sleep 77 & echo $! > {tmp_path}/pid; wait'], sys.stderr, {{}})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert "KeyboardInterrupt" in done.stderr
    pid = int((tmp_path / "pid").read_text())
    until(lambda: state(pid) == "Z")


def test_an_environment_is_made_once(tmp_path, monkeypatch) -> None:
    ran = []

    def run(command, out, variables) -> int:
        ran.append(command)
        python = tmp_path / "envs" / "small" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        return 0

    monkeypatch.setattr("tools.peers.environments._run", run)
    small, said = Environment("small", ("one==1",)), []
    python = install(small, tmp_path, said.append)
    assert install(small, tmp_path, said.append) == python
    assert len(said) == 1
    assert len(ran) == 2  # One command makes the environment, and one installs its packages.
    install(Environment("small", ("one==2",)), tmp_path, said.append)
    assert len(said) == 2


def test_requantised_files_are_close_and_complete(tmp_path) -> None:
    from gguf import GGMLQuantizationType as Kind
    from gguf import GGUFReader, GGUFWriter
    from gguf.quants import dequantize, quantize

    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 64)).astype(np.float32)
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    writer = GGUFWriter(source, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"])
    writer.add_tensor("w", quantize(weights, Kind.Q4_1), raw_dtype=Kind.Q4_1)
    writer.add_tensor("norm", weights[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    requantise(source, target, Kind.Q8_0)
    assert weights_of(source) == "gguf"  # The file has no name for its format.
    with pytest.raises(InvalidInput, match="give a GGUF file"):
        weights_of(Path(__file__))
    before, after = GGUFReader(source), GGUFReader(target)
    assert [t.tensor_type for t in after.tensors] == [Kind.Q8_0, Kind.F32]
    assert after.get_field("tokenizer.ggml.tokens").contents() == ["a", "bc"]
    assert after.get_field("llama.block_count").contents() == 1
    one, two = (dequantize(f.tensors[0].data, f.tensors[0].tensor_type) for f in (before, after))
    np.testing.assert_allclose(two, one, atol=0.02)


def test_formats_that_cannot_be_made_say_why(tmp_path) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(b"x")
    formats = Formats(source, tmp_path / "models")
    assert formats.path("source") == source
    with pytest.raises(FormatError, match="unknown format"):
        formats.path("nothing")
    with pytest.raises(FormatError, match=r"nothing is installed for export_openvino\.py"):
        formats.path("openvino-int8")
    with pytest.raises(FormatError, match=r"nothing is installed for export_onnx\.py"):
        formats.path("onnx-int4")


def test_a_format_that_failed_is_not_tried_again(tmp_path, monkeypatch) -> None:
    source, tried = tmp_path / "m.gguf", []
    source.write_bytes(b"x")

    def fail(self, name, target) -> None:
        tried.append(name)
        target.write_bytes(b"half")
        raise FormatError("the disk is full")

    monkeypatch.setattr(Formats, "_make", fail)
    formats = Formats(source, tmp_path / "models")
    for _ in range(2):
        with pytest.raises(FormatError, match="disk is full"):
            formats.path("q4_0")
    assert tried == ["q4_0"]
    assert list(formats.folder.iterdir()) == []
