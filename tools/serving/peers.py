"""Compares our server with the peers' servers: same weights, same cores, one interleaved run.

    LLAMA_CPP=FOLDER IK_LLAMA_CPP=FOLDER python -m tools.serving.peers [--model FILE.gguf]
        [--concurrency 1 4 16 64] [--requests 48] [--rounds 5] [--out FILE.json]

For each number of clients it starts Paradecode's server and those of llama.cpp, ik_llama.cpp (both
from source checkouts, compiled for this machine) and, if it is named, ``transformers serve``, with
as many slots as there are clients. It sends load to the servers in turns. Without ``LLAMA_CPP``
llama.cpp's server is the ``llama-server`` on the PATH, else the one inside xllamacpp, which is not
compiled for this machine. Only the server that is measured runs; the others are stopped (SIGSTOP)
meanwhile. A peer that cannot be installed or started is left out, and the result says why. Run it
on a machine that does nothing else. The same command resumes an interrupted run.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import typer

from paradecode.cli.progress import STOPPED
from paradecode.core.errors import InvalidInput
from paradecode.models.catalogue import open_model
from paradecode_lab.commands.load import drive
from paradecode_lab.measure.machine import usable_cores
from paradecode_lab.measure.suites.load.asks import read_asks
from paradecode_lab.measure.suites.load.plan import Endpoint, LoadPlan, OfferedLoad
from tools.peers.checkout import building, find_source
from tools.peers.environments import (
    BUILD_TOOLS,
    TRANSFORMERS_SERVE,
    XLLAMACPP,
    InstallError,
    install,
)
from tools.peers.formats import FormatError, Formats
from tools.peers.process import WORKERS, last_line, signal_group
from tools.script import OUT, REPOSITORY, err, options

CONTEXT = 1024
"""Context length of one request, in tokens, at every server."""

WARM_UP = 8
"""Number of requests before each measurement."""

START_SECONDS = 600.0
SAVE_TOKENIZER = """
import sys
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained(sys.argv[1], gguf_file=sys.argv[2]).save_pretrained(sys.argv[3])
"""


class NotStarted(Exception):
    """A server is left out; the message becomes the reason in the results."""


@dataclass
class Server:
    """A server, which is a process group that listens on ``port``.

    Attributes:
        name: name of the server in the tables.
        command: the command that starts it.
        model: name of the model in its requests; None takes the first model that it lists.
        variables: environment variables in addition to the inherited ones.
        bodies: endpoint's name -> further fields of its requests. Methods of one server are several
            endpoints.
    """

    name: str
    command: list[str]
    port: int
    model: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path) -> None:
        """Start the server, and wait until it answers to /health.

        Raises:
            NotStarted: it ended or took too long; the message has the last line of its log.
        """
        log = folder / f"{self.name}.log"
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder,
                env={**os.environ, **self.variables}, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + START_SECONDS
        while not _answers(f"http://127.0.0.1:{self.port}/health"):
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise NotStarted(f"it did not start: {last_line(log) or 'no message'}")
            time.sleep(0.5)

    def endpoints(self) -> list[Endpoint]:
        url = f"http://127.0.0.1:{self.port}/v1"
        bodies = self.bodies or {self.name: {}}
        return [Endpoint(name, url, self.model, body) for name, body in bodies.items()]

    def signal(self, number: int) -> None:
        if self.process is not None:
            signal_group(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def paradecode(model: Path, threads: int, slots: int) -> Server:
    """Return our server, plain and with its default method, as two endpoints."""
    port = _free_port()
    command = [
        sys.executable, "-c", "from paradecode.cli import main; main()", "serve",
        f"model={model}", "--port", str(port), "--threads", str(threads),
        "--kv-tokens", str(slots * CONTEXT), "--no-log-requests",
    ]  # fmt: skip
    bodies = {"paradecode-plain": {"speculative": "none"}, "paradecode": {}}
    return Server("paradecode", command, port, bodies=bodies)


def llama_cpp(model: Path, threads: int, slots: int) -> Server:
    """Return llama.cpp's own server."""
    found = _compiled("LLAMA_CPP") if "LLAMA_CPP" in os.environ else shutil.which("llama-server")
    if found is not None:
        return _llama_server("llama-cpp", str(found), model, threads, slots)
    python, port = install(XLLAMACPP, OUT, err.print), _free_port()
    numbers = map(str, (port, threads, slots, CONTEXT))
    command = [str(python), str(WORKERS / "xllamacpp_server.py"), str(model), *numbers]
    return Server("llama-cpp", command, port)


def ik_llama_cpp(model: Path, threads: int, slots: int) -> Server:
    """Return ik_llama.cpp's server, which repacks the weights."""
    program = str(_compiled("IK_LLAMA_CPP"))
    return _llama_server("ik-llama-cpp", program, model, threads, slots, "--run-time-repack")


def _llama_server(
    name: str, program: str, model: Path, threads: int, slots: int, *more: str
) -> Server:
    """Return the server of llama.cpp or ik_llama.cpp, which batches continuously by default."""
    port = _free_port()
    command = [
        program, "--model", str(model), "--port", str(port), "--threads", str(threads),
        "--threads-batch", str(threads), "--parallel", str(slots),
        "--ctx-size", str(slots * CONTEXT), "--flash-attn", "on", *more,
    ]  # fmt: skip
    return Server(name, command, port)


def _compiled(variable: str) -> Path:
    """Return the ``llama-server`` of a checkout, which is compiled if it is missing."""
    source = find_source(variable, OUT)
    program = source / "build" / "bin" / "llama-server"
    if not program.is_file():
        programs = install(BUILD_TOOLS, OUT, err.print).parent
        err.print(f"compiling {program} (half an hour from nothing)", highlight=False)
        for command in building(source, programs, program.name):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise InstallError(f"{variable}: {(done.stdout + done.stderr)[-300:]}")
    return program


def transformers(model: Path, threads: int, slots: int) -> Server:
    """Return ``transformers serve`` with its own batching, on weights dequantised to bfloat16."""
    python = install(TRANSFORMERS_SERVE, OUT, err.print)
    port, folder = _free_port(), _transformers_folder(model, python)
    command = [
        str(python.with_name("transformers")), "serve", str(folder), "--port", str(port),
        "--device", "cpu", "--dtype", "bfloat16", "--continuous-batching",
        "--cb-num-blocks", str(slots * CONTEXT // 32), "--cb-block-size", "32",
    ]  # fmt: skip
    variables = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    return Server("transformers", command, port, str(folder), variables)


def _transformers_folder(model: Path, python: Path) -> Path:
    """Make a folder with the dequantised weights, and the GGUF file's tokenizer and chat template.

    transformers cannot read this GGUF file itself: it finds no architecture in its header.
    """
    weights = Formats(model, OUT / "models", say=err.print).path("safetensors")
    folder = weights.with_name("transformers-serve")
    if not (folder / "tokenizer.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file in weights.iterdir():
            (folder / file.name).symlink_to(file.resolve())
        command = [str(python), "-c", SAVE_TOKENIZER, str(model.parent), model.name, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise NotStarted(f"no tokenizer: {lines[-1][:200]}")
    return folder


SERVERS: dict[str, Callable[[Path, int, int], Server]] = {
    "ik-llama-cpp": ik_llama_cpp, "llama-cpp": llama_cpp, "paradecode": paradecode,
    "transformers": transformers,
}  # fmt: skip
"""The servers. All others are compared with the first one that runs."""


def main() -> None:
    parser = options(
        __doc__, requests=48, rounds=5, max_tokens=128, threads=usable_cores(), slo_ttft=1.0,
        slo_tpot=0.05,
    )  # fmt: skip
    parser.add_argument("--servers", nargs="+", choices=list(SERVERS), default=list(SERVERS)[:3])
    parser.add_argument("--skip", nargs="+", default=[], help="endpoints, such as paradecode-plain")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--model", type=Path, help="GGUF file; the default model without it")
    parser.set_defaults(out=REPOSITORY / "bench" / "results" / "serve_peers.json")
    given = parser.parse_args()
    given.model = (given.model or Path(open_model().source)).resolve()
    logs = OUT / "runs" / "serve"
    logs.mkdir(parents=True, exist_ok=True)
    running: list[Server] = []
    left_out: dict[str, str] = {}
    try:
        for number, clients in enumerate(given.concurrency, 1):
            for name in [one for one in SERVERS if one in given.servers and one not in left_out]:
                err.print(f"starting {name} for {clients}", highlight=False)
                try:
                    running.append(SERVERS[name](given.model, given.threads, clients))
                    running[-1].start(logs)
                except (InstallError, FormatError, NotStarted) as error:
                    left_out[name] = str(error)
                    err.print(f"[yellow]{name} left out:[/] {error}", highlight=False)
            # The journal has the measurements of earlier loads.
            _measure(running, left_out, given, given.concurrency[:number])
            while running:
                running.pop().kill()
    except (KeyboardInterrupt, typer.Exit) as stopped:
        sys.exit(getattr(stopped, "exit_code", STOPPED))
    except InvalidInput as error:
        err.print(f"[red]error:[/] {error}", highlight=False)
        sys.exit(2)
    finally:
        for server in running:
            server.kill()


def _measure(
    running: list[Server], left_out: dict[str, str], given: Namespace, concurrency: list[int]
) -> None:
    running = [server for server in running if server.name not in left_out]
    each = [(endpoint, server) for server in running for endpoint in server.endpoints()]
    owners = {endpoint.name: server for endpoint, server in each if endpoint.name not in given.skip}
    plan = LoadPlan(
        endpoints=tuple(endpoint for endpoint, _ in each if endpoint.name in owners),
        loads=tuple(OfferedLoad(clients=count) for count in concurrency),
        requests=given.requests, rounds=given.rounds, max_tokens=given.max_tokens,
        warmup=WARM_UP, count="tokenizer",
        slo_ttft=given.slo_ttft, slo_tpot=given.slo_tpot,
    )  # fmt: skip
    plan.check()

    def begin(endpoint: Endpoint) -> None:
        for server in running:
            own = server is owners[endpoint.name]
            server.signal(signal.SIGCONT if own else signal.SIGSTOP)

    facts = {"threads": given.threads, "context": CONTEXT, "left_out": left_out}
    drive(
        plan, read_asks(None, plan.max_tokens), given.out,
        OUT / "runs" / "serve" / f"{given.out.stem}.jsonl",
        facts=facts, begin=begin, tokenizer=str(given.model),
    )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
