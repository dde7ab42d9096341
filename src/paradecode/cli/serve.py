"""`paradecode serve`: an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paradecode.cli.console import STOPPED, err, out
from paradecode.cli.options import Decoding, argument, grouped, option
from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import Spec, parse
from paradecode.models.catalogue import DEFAULT

if TYPE_CHECKING:
    from paradecode.serve.pool import Pool, Served
    from paradecode.serve.settings import ServerSettings

OWN = ("decoder", "draft_model", "adapter", "profile", "chat_template")
"""Settings that a single model may have: SOURCE,decoder=...,adapter=..."""

NEEDED = ("fastapi", "uvicorn", "httptools", "zstandard", "prometheus_client", "llguidance")


@dataclass(frozen=True)
class Listening:
    """Options that say where to listen, and who may connect.

    The names are those of ServerSettings, except ``keys_file``.
    """

    host: str = option("127.0.0.1", "Listen on this address.")
    port: int = option(8000, "Listen on this port; 0 takes a free one.")
    keys: list[str] | None = option(
        None,
        "A key that clients must give; repeat for more.",
        "--api-key",
        sets="api_key",
        envvar="PARADECODE_API_KEY",
    )
    keys_file: Path | None = option(
        None, "Read keys and their limits from this JSON file.", "--keys", sets="keys"
    )
    public: list[str] | None = option(
        None, "Answer this page without a key: health, metrics or openapi; repeat for more."
    )
    allowed_hosts: list[str] | None = option(
        None,
        "Without a key, also accept this Host header, such as host.docker.internal; repeat.",
        "--allowed-host",
        sets="allowed-host",
    )
    force: bool = option(False, "Allow connections from other machines without a key.")
    connections: int = option(1024, "Allow at most this many connections at the same time.")
    outputs: int = option(64, "Allow at most this many outputs of one request.", "--max-outputs")
    search_tokens: int = option(
        1 << 16, "Allow so many tokens in all branches of a search.", "--max-search-tokens"
    )
    request_seconds: float = option(
        600.0, "End a request after this many seconds, with the text it has.", "--request-timeout"
    )
    drain_seconds: float = option(
        30.0, "When stopping, wait this many seconds for open requests.", "--drain-timeout"
    )
    hang_seconds: float = option(
        120.0, "Restart a busy worker that sends nothing for this many seconds.", "--hang-timeout"
    )
    load_seconds: float = option(
        600.0, "Allow a worker this many seconds to load its model.", "--load-timeout"
    )
    strict: bool = option(False, "Refuse requests with a field that has no effect.", "--strict")
    ignore_unknown: bool = option(
        False, "Ignore unknown fields of requests, even misspelt ones.", "--ignore-unknown"
    )
    stored_responses: int = option(
        0, "Keep this many responses of each key in memory, for previous_response_id."
    )
    open_objects: bool = option(
        False, "Let JSON objects have properties that their schema does not name.", "--open-objects"
    )
    origins: list[str] | None = option(
        None,
        "Let web pages of this origin use the server (* allows all); repeat for more.",
        "--cors-origin --allowed-origins",
        sets="origin",
    )
    log_requests: bool = option(True, "Log one line for each request, without its texts.")


@dataclass(frozen=True)
class Working:
    """Options of each model's workers.

    Their second names are those of vLLM, SGLang and llama.cpp.
    """

    replicas: int = option(1, "Number of workers of a model.", "--replicas --data-parallel-size")
    backend: str = option("auto", "auto, native or torch.")
    dtype: str = option("auto", "Type of the weights in the backend; auto follows the file.")
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    threads: int | None = option(
        None, "CPU threads of each worker; by default an equal share of the cores.", "--threads -t"
    )
    draft_threads: int | None = option(
        None, "Number of CPU threads for the draft model or the draft heads, beside the target's."
    )
    draft_device: str | None = option(
        None, "cpu, cuda or cuda:N: where PyTorch runs the draft model and draft heads."
    )
    draft_vocabulary: str | None = option(
        None, "Table of n-grams; the draft model only proposes tokens that are in it."
    )
    ranks: int = option(
        1,
        "Divide each worker's model among this many processes, one for each GPU (torch).",
        "--ranks --tensor-parallel-size",
    )
    batch: int = option(
        64,
        "Decode at most this many outputs together in a worker.",
        "--batch --max-num-seqs --max-running-requests --parallel",
    )
    kv_tokens: int = option(
        32768,
        "Keep K/V memory for this many tokens in a worker, for all its outputs.",
        "--kv-tokens --max-total-tokens --ctx-size -c",
    )
    step_tokens: int = option(
        512,
        "Split prompts so that a forward has at most this many rows.",
        "--step-tokens --max-num-batched-tokens --chunked-prefill-size",
    )
    prefix_cache: bool = option(
        True,
        "Compute the K/V of equal beginnings of prompts only once.",
        "--prefix-cache/--no-prefix-cache --enable-prefix-caching/--no-enable-prefix-caching",
    )
    queue: int = option(
        256,
        "Let this many outputs wait at a worker; refuse further ones with status 429.",
        "--queue --max-queued-requests",
        sets="queue_requests",
    )
    max_tokens: int = option(1024, "Most tokens of requests without a limit.", "--max-tokens -n")
    python_constraints: bool = option(
        False, "Accept constraints checked by a monitor for Python.", "--python-constraints"
    )
    scorer: str | None = option(None, "Default scorer of searches, as process-reward(path=FILE).")
    chat_template: str | None = option(
        None, "A file of Jinja, or a name such as rag, in place of the models' chat templates."
    )


@dataclass(frozen=True)
class Clustering:
    """Options for serving on several machines."""

    ray: bool = option(False, "Run the server as --replicas deployments of Ray Serve.", "--ray")
    ray_address: str | None = option(
        None, "Deploy to a running cluster ('auto' means this machine's), and return."
    )
    max_replicas: int | None = option(
        None, "With --ray, start up to this many replicas when the load is high."
    )


@grouped
def serve(
    listening: Listening,
    working: Working,
    decoding: Decoding,
    clustering: Clustering,
    models: list[str] | None = argument(
        None,
        "Models, each SOURCE or NAME=SOURCE; behind it ,decoder=SPEC,"
        "draft_model=M,adapter=FILE,profile=FILE,chat_template=FILE of its own.",
        sets="model",
    ),
    more: list[str] | None = option(
        None, "As MODELS; repeat for more.", "--model -m --model-path", sets="model"
    ),
    names: list[str] | None = option(
        None,
        "Name of a single model, or ALIAS=NAME for a further name (* stands for any text); repeat.",
        "--served-model-name --alias -a",
    ),
) -> None:
    """Serve models over HTTP, as OpenAI's API. Ctrl-C finishes accepted requests, then stops."""
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise InvalidInput(
            "package", missing[0], "install it: pip install -e '.[serve]' in the checkout"
        )
    from paradecode.serve.keys import plain_keys, read_keys
    from paradecode.serve.server import serve as run
    from paradecode.serve.settings import ServerSettings

    plain = [name for name in names or () if "=" not in name]
    if len(plain) > 1:
        raise InvalidInput("--served-model-name", plain[1], "give one, and others as ALIAS=NAME")
    named = _named([*(models or ()), *(more or ())] or [DEFAULT], *plain)
    given = {
        **vars(listening),
        "keys": plain_keys(listening.keys or ()),
        "public": tuple(listening.public or ()),
        "allowed_hosts": tuple(listening.allowed_hosts or ()),
        "origins": tuple(listening.origins or ()),
        "aliases": tuple((a, n) for a, _, n in (x.partition("=") for x in names or ()) if n),
    }
    if (file := given.pop("keys_file")) is not None:
        given["keys"] += read_keys(file)
    served = tuple(_served(*entry, working, decoding) for entry in named)
    settings = ServerSettings(models=served, **given)
    if clustering.ray or clustering.ray_address is not None:
        _serve_on_ray(settings, working, clustering)
        return
    if clustering.max_replicas is not None:
        raise InvalidInput("--max-replicas", clustering.max_replicas, "give --ray with it")
    try:
        with err.status("loading ...") as waiting:

            def announce(address: str, pool: Pool) -> None:
                waiting.stop()
                served = ", ".join(f"{name} ({said.decoder})" for name, said in pool.ready.items())
                out.print(f"ready: {address}/v1 serves {served}", soft_wrap=True, highlight=False)

            asyncio.run(run(settings, announce))
    except KeyboardInterrupt:  # A model was still loading.
        raise typer.Exit(STOPPED) from None
    err.print("stopped", highlight=False)


def _serve_on_ray(settings: ServerSettings, working: Working, clustering: Clustering) -> None:
    if find_spec("ray") is None or find_spec("ray.serve") is None:
        raise InvalidInput("package", "ray", "install it: pip install -e '.[ray]' in the checkout")
    from paradecode.serve.ray.deploy import Scaling, deploy_to, run

    models = len(settings.models)
    scaling = Scaling(
        replicas=working.replicas,
        most=clustering.max_replicas,
        ongoing=max(1, working.batch // 2),
        cpus=models * (working.threads or 1),
        gpus=models * working.ranks if working.device != "cpu" else 0,
    )
    served = ", ".join(model.name for model in settings.models)
    try:
        with err.status("starting ...") as waiting:

            def announce(address: str) -> None:
                waiting.stop()
                out.print(f"ready: {address}/v1 serves {served}", soft_wrap=True, highlight=False)

            if clustering.ray_address is not None:
                announce(deploy_to(clustering.ray_address, settings, scaling))
                return
            run(settings, scaling, announce)
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    err.print("stopped", highlight=False)


def _named(sources: list[str], name: str | None = None) -> list[tuple[str, str, dict[str, str]]]:
    """Return the public name, the source, and the own settings of each model."""
    if name is not None and len(sources) > 1:
        raise InvalidInput("--served-model-name", name, "write NAME=SOURCE for several models")
    named = []
    for source in sources:
        # A comma that is not followed by the name of a setting belongs to the text around it.
        where, *rest = re.split(rf",({'|'.join(OWN)})=", source)
        own, equals, place = where.partition("=")
        settings = dict(zip(rest[::2], rest[1::2], strict=True))
        named.append((own, place, settings) if equals else (name or where, where, settings))
    return named


def _served(
    name: str, source: str, own: dict[str, str], working: Working, decoding: Decoding
) -> Served:
    from paradecode.serve.pool import Served
    from paradecode.serve.worker.settings import WorkerSettings

    given = vars(working)
    limits = {name: given[name] for name in ("batch", "kv_tokens", "step_tokens", "prefix_cache")}
    own_names = ("backend", "dtype", "device", "threads", "draft_threads", "draft_device",
                 "draft_vocabulary", "ranks", "max_tokens", "python_constraints",
                 "scorer")  # fmt: skip
    same = {name: given[name] for name in own_names}
    worker = WorkerSettings(
        model=source, **_method(own, decoding), adapter=own.get("adapter"), limits=limits,
        chat_template=own.get("chat_template", working.chat_template),
        queue_requests=working.queue, **same,
    )  # fmt: skip
    return Served(name, worker, working.replicas)


def _method(own: dict[str, str], decoding: Decoding) -> dict[str, Any]:
    """Return the settings of a model's method: its own method, or the one for all models."""
    if "decoder" in own and "profile" in own:
        raise InvalidInput("profile", own["profile"], "give a model one of decoder and profile")
    if own.keys() & {"decoder", "profile"}:
        chosen: Spec | str = parse(own["decoder"]) if "decoder" in own else "auto"
        profile = own.get("profile")
    else:
        chosen = "auto" if decoding.profile is not None else decoding.choice()
        profile = None if decoding.profile is None else str(decoding.profile)
    given = own.get("draft_model") or decoding.draft_model
    draft = given or getattr(chosen, "draft_model", None)
    return {"decoder": str(chosen), "profile": profile, "draft_model": draft}
