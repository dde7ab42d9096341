"""The same application as on one machine, as the deployment that Ray's HTTP proxies send to."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from paradecode.serve.app import create_app
from paradecode.serve.metrics import Metrics
from paradecode.serve.ray.fleet import Fleet
from paradecode.serve.settings import ServerSettings


@serve.ingress()
class Front:
    """Checks requests and keys, follows the replicas, and counts for ``/metrics``."""

    # Ray awaits constructors that are coroutines.
    async def __init__(  # type: ignore[misc]
        self, settings: ServerSettings, replicas: DeploymentHandle
    ) -> None:
        metrics = Metrics([model.name for model in settings.models])
        fleet = Fleet(replicas, metrics.observe)
        await fleet.start()
        self._app = create_app(settings, fleet, metrics)

    def __serve_build_asgi_app__(self) -> Any:
        return self._app
