"""Deploy the server to a Ray cluster: one that is started here, or one that already runs."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from paradecode.core.checks import attributes, number, whole
from paradecode.core.errors import InvalidInput
from paradecode.serve.ray.actors import Front, RayReplica
from paradecode.serve.ray.router import PrefixRouter
from paradecode.serve.server import bind
from paradecode.serve.settings import ServerSettings

APPLICATION, FRONT = "paradecode", "Front"
REST, LOOK = 10.0, 0.1
"""Seconds that a replaced front lives after the longest deadline, and seconds between two checks.

A check finds out whether the application has ended.
"""

STORE_BYTES = 100 << 20
"""Bytes of Ray's shared memory on a cluster of one machine. Only events of requests need it."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # Each request logs one line.
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # Otherwise gRPC warns when replicas start workers.
}
"""Environment variables for a cluster that is started here. Values that the user set are kept."""

QUIET = {"log_level": "WARNING", "enable_access_log": False}


@dataclass(frozen=True)
class Scaling:
    """The number of replicas, and the load at which it changes.

    Attributes:
        replicas: the fewest replicas. Each has one worker of each model.
        most: the most replicas, for autoscaling; None keeps the number fixed.
        ongoing: number of running requests per replica above which more replicas are started.
        cpus, gpus: numbers of CPUs and GPUs that Ray reserves for a replica.
    """

    replicas: int = 1
    most: int | None = None
    ongoing: int = 16
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        some = number(0, 4096)
        attributes(
            self,
            {"replicas": whole(1, 4096), "ongoing": whole(1, 1 << 16), "cpus": some, "gpus": some},
        )
        if self.most is not None and not self.replicas <= self.most <= 4096:
            raise InvalidInput("max_replicas", self.most, f"give {self.replicas} to 4096")


def application(settings: ServerSettings, scaling: Scaling) -> serve.Application:
    """Return the application: the front and its replicas.

    Ray offers a replica as many requests as its worker runs and queues, and the worker refuses
    further ones by its own, finer count. An update replaces a few replicas at a time. A replaced
    replica ends when its requests have ended, or after ``drain_seconds``; another replica then
    continues them. A replaced front lives until its last stream has ended, because only it holds
    their connections. A front has no model.
    """
    worker = settings.models[0].worker
    room = worker.engine_limits().batch + worker.queue_requests
    count: dict[str, Any] = {"num_replicas": scaling.replicas}
    if scaling.most is not None:
        count = {
            "autoscaling_config": {
                "min_replicas": scaling.replicas,
                "max_replicas": scaling.most,
                "target_ongoing_requests": scaling.ongoing,
            }
        }
    replicas = serve.deployment(
        RayReplica,
        name="Replica",
        ray_actor_options={"num_cpus": scaling.cpus, "num_gpus": scaling.gpus},
        max_ongoing_requests=room,
        max_queued_requests=room * (scaling.most or scaling.replicas),
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=2.0,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        max_constructor_retry_count=2,
        logging_config=QUIET,
        **count,
    )
    front = serve.deployment(
        Front,
        name=FRONT,
        # Ray's limit would refuse requests without an error in the API's form. The front has a
        # limit of its own.
        max_ongoing_requests=1 << 16,
        # The front runs beside Ray's own head and proxy, without which nothing is served anyway.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        graceful_shutdown_timeout_s=settings.request_seconds + REST,
        max_surge_percent=100,  # The new replica starts before the old one ends.
        logging_config=QUIET,
    )
    bound: serve.Application = front.bind(settings, replicas.bind(settings))
    return bound


def deploy(settings: ServerSettings, scaling: Scaling) -> None:
    """Deploy to the cluster that this process is connected to. Return when it takes requests.

    A further deployment replaces the running one, a few replicas at a time.

    Raises:
        InvalidInput: with Ray's reason, if the replicas do not start.
    """
    http = {"host": settings.host, "port": settings.port}
    # Streams through a proxy on another machine would break if that machine died, although other
    # replicas could continue them.
    serve.start(proxy_location="HeadOnly", http_options=http, logging_config=QUIET)
    try:
        serve.run(application(settings, scaling), name=APPLICATION)
    except RuntimeError as error:
        raise InvalidInput("models", [m.name for m in settings.models], _reason(error)) from None


def _reason(error: RuntimeError) -> str:
    """Return the message of the last replica that could not start.

    Ray's own error only names it.
    """
    found = serve.status().applications.get(APPLICATION)
    said = [] if found is None else [one.message for one in found.deployments.values()]
    lines = [line for line in "\n".join(said).splitlines() if "InvalidInput" in line]
    return lines[-1].rpartition("InvalidInput: ")[2] if lines else str(error)


def deploy_to(address: str, settings: ServerSettings, scaling: Scaling) -> str:
    """Deploy to a running cluster, and return the server's address. The server stays there.

    Args:
        address: an address for ``ray.init``, where ``auto`` means the cluster of this machine.

    Raises:
        InvalidInput: if there is no such cluster, or if the replicas do not start.
    """
    try:
        ray.init(address=address, logging_level="WARNING", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidInput(
            "--ray-address", address, f"name a running cluster ({said[0]})"
        ) from None
    try:
        deploy(settings, scaling)
    finally:
        ray.shutdown()
    return f"http://{settings.host}:{settings.port}"


def run(settings: ServerSettings, scaling: Scaling, announce: Callable[[str], None]) -> None:
    """Serve on a cluster of this machine until SIGINT or SIGTERM, and finish accepted requests.

    Args:
        announce: called with the server's address when it takes requests.

    Raises:
        InvalidInput: if the address cannot be used, or if a model does not load.
    """
    listener = bind(settings)  # Fails here if the port is taken. Ray would only log it.
    settings = replace(settings, port=listener.getsockname()[1])
    listener.close()
    with cluster():
        deploy(settings, scaling)
        stop = threading.Event()

        def finish(*_: object) -> None:
            stop.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # A second one ends at once.

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, finish)
        announce(f"http://{settings.host}:{settings.port}")
        stop.wait()
        _end(settings.drain_seconds)


def _end(seconds: float) -> None:
    """End the application when its requests have ended, or after ``seconds``."""
    serve.delete(APPLICATION, _blocking=False)
    limit = time.monotonic() + seconds
    while APPLICATION in serve.status().applications and time.monotonic() < limit:
        time.sleep(LOOK)
    for named in ray.util.list_named_actors(all_namespaces=True):
        if f"{APPLICATION}#{FRONT}" in named["name"]:
            with suppress(ValueError):  # The actor has just ended.
                ray.kill(ray.get_actor(named["name"], named["namespace"]))


@contextmanager
def cluster(cpus: int | None = None) -> Iterator[None]:
    """Run a Ray cluster on this machine alone, without dashboard, telemetry or lasting logs.

    Args:
        cpus: number of CPUs that replicas may share; None means all CPUs of the machine.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    folder = tempfile.mkdtemp(prefix="pd-ray-")  # Short, because paths of sockets are limited.
    try:
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            logging_level="WARNING",
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        yield
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
