"""Our server beside the peers' servers: same weights, same cores, one interleaved run.

    python -m tools.serving.peers [--requests 48] [--rounds 5] [--out bench/results/serve.json]

Starts Paradecode's server, llama.cpp's (``llama-server`` where it is on the PATH, else the one
inside xllamacpp) and ``transformers serve``, waits until each answers, and drives them at each
concurrency. Only the server that is measured runs: the others are stopped (SIGSTOP) meanwhile. A
peer that cannot be installed or started is left out, and the result says why. Run it on a machine
that does nothing else.
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

from paradecode.cli.load import drive
from paradecode.cli.progress import STOPPED
from paradecode.core.errors import InvalidInput
from paradecode.measure.machine import usable_cores
from paradecode.measure.suites.load.asks import read_asks
from paradecode.measure.suites.load.plan import Endpoint, LoadPlan, OfferedLoad
from paradecode.models.catalogue import open_model
from tools.peers.environments import TRANSFORMERS_SERVE, XLLAMACPP, InstallError, install
from tools.peers.formats import FormatError, Formats
from tools.peers.process import WORKERS, last_line, signal_group
from tools.script import OUT, REPOSITORY, err, options

CONTEXT = 2048
"""Of one request, at every server."""

START_SECONDS = 600.0
SAVE_TOKENIZER = """
import sys
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained(sys.argv[1], gguf_file=sys.argv[2]).save_pretrained(sys.argv[3])
"""


class NotStarted(Exception):
    """A server that is left out; the message is the reason in the results."""


@dataclass
class Server:
    """A process group that listens on ``port``.

    Attributes:
        name: as in the tables.
        command: what starts it.
        model: as its requests name it; None takes the first that it lists.
        variables: environment variables besides the inherited ones.
        bodies: endpoint name -> more fields of its requests: methods of one server.
    """

    name: str
    command: list[str]
    port: int
    model: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path) -> None:
        """Start it and wait until it answers to /health.

        Raises:
            NotStarted: with the last line of its log.
        """
        log = folder / f"{self.name}.log"
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
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
    """Ours, plain and with its default method: two endpoints of one server."""
    port = _free_port()
    command = [
        sys.executable, "-c", "from paradecode.cli import main; main()", "serve",
        f"smollm2={model}", "--port", str(port), "--threads", str(threads),
        "--kv-tokens", str(slots * CONTEXT), "--no-log-requests",
    ]  # fmt: skip
    bodies = {"paradecode-plain": {"speculative": "none"}, "paradecode": {}}
    return Server("paradecode", command, port, bodies=bodies)


def llama_cpp(model: Path, threads: int, slots: int) -> Server:
    """llama.cpp's own server, with continuous batching."""
    port, found = _free_port(), shutil.which("llama-server")
    if found is not None:
        command = [
            found, "--model", str(model), "--port", str(port), "--threads", str(threads),
            "--parallel", str(slots), "--ctx-size", str(slots * CONTEXT),
        ]  # fmt: skip
    else:
        python = install(XLLAMACPP, OUT, err.print)
        numbers = map(str, (port, threads, slots, CONTEXT))
        command = [str(python), str(WORKERS / "xllamacpp_server.py"), str(model), *numbers]
    return Server("llama-cpp", command, port)


def transformers(model: Path, threads: int, slots: int) -> Server:
    """``transformers serve`` on the same weights, dequantised to bfloat16, in its own batching."""
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
    """Its weights with the tokenizer and chat template of the GGUF file beside them.

    Its own reading of GGUF files does not serve: it finds no architecture in this one's header.
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
    "llama-cpp": llama_cpp, "paradecode": paradecode, "transformers": transformers,
}  # fmt: skip


def main() -> None:
    parser = options(
        __doc__, requests=48, rounds=5, max_tokens=128, threads=usable_cores(), slo_ttft=1.0,
        slo_tpot=0.05,
    )  # fmt: skip
    parser.add_argument("--servers", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 4, 16])
    parser.set_defaults(out=REPOSITORY / "bench" / "results" / "serve.json")
    given = parser.parse_args()
    logs = OUT / "runs" / "serve"
    logs.mkdir(parents=True, exist_ok=True)
    running, left_out = [], {}
    try:
        # llama.cpp comes first: the first endpoint is what the others are compared with.
        for name in sorted(given.servers):
            try:
                running.append(_start(name, given, logs))
            except (InstallError, FormatError, NotStarted) as error:
                left_out[name] = str(error)
                err.print(f"[yellow]{name} left out:[/] {error}", highlight=False)
        _measure(running, left_out, given)
    except (KeyboardInterrupt, typer.Exit) as stopped:
        sys.exit(getattr(stopped, "exit_code", STOPPED))
    except InvalidInput as error:
        err.print(f"[red]error:[/] {error}", highlight=False)
        sys.exit(2)
    finally:
        for server in running:
            server.kill()


def _start(name: str, given: Namespace, logs: Path) -> Server:
    model = Path(open_model().source)
    server = SERVERS[name](model, given.threads, max(given.concurrency))
    err.print(f"starting {name}", highlight=False)
    server.start(logs)
    return server


def _measure(running: list[Server], left_out: dict[str, str], given: Namespace) -> None:
    owners = {endpoint.name: server for server in running for endpoint in server.endpoints()}
    plan = LoadPlan(
        endpoints=tuple(endpoint for server in running for endpoint in server.endpoints()),
        loads=tuple(OfferedLoad(clients=count) for count in given.concurrency),
        requests=given.requests, rounds=given.rounds, max_tokens=given.max_tokens,
        warmup=max(given.concurrency), count="tokenizer",
        slo_ttft=given.slo_ttft, slo_tpot=given.slo_tpot,
    )  # fmt: skip
    plan.check()

    def begin(endpoint: Endpoint) -> None:
        for server in running:
            own = server is owners[endpoint.name]
            server.signal(signal.SIGCONT if own else signal.SIGSTOP)

    facts = {"threads": given.threads, "context": CONTEXT, "left_out": left_out}
    journal = OUT / "runs" / "serve" / "answers.jsonl"
    drive(plan, read_asks(None, plan.max_tokens), given.out, journal, facts=facts, begin=begin)


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
