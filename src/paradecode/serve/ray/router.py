"""Ray Serve's hook for choosing a replica. It calls `prefix.choose` with what it has sent."""

from __future__ import annotations

from collections import Counter

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    ReplicaResult,
    RequestRouter,
    RunningReplica,
)

from paradecode.serve.ray.prefix import choose


class PrefixRouter(RequestRouter):
    """Sends requests with the same argument ``key`` to the same replica, within a bound on load.

    Ray tries the replicas in the returned order, which ends with those in the argument ``avoid``.
    Ray skips a replica that has died, or that refuses because of ``max_ongoing_requests``.
    """

    def initialize_state(self, **kwargs: object) -> None:
        self._placed: dict[str, str] = {}
        """Id of a running request -> its replica."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # Wait between rounds only.
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        sent = Counter(self._placed.values())
        # A request without a key goes to a replica by its own id, which spreads requests evenly.
        key = pending_request.kwargs.get("key") or pending_request.metadata.internal_request_id
        order = choose(key, {name: sent[name] for name in by_name})
        avoid = pending_request.kwargs.get("avoid") or ()
        return [[by_name[name]] for name in sorted(order, key=avoid.__contains__)]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        self._placed[pending_request.metadata.internal_request_id] = replica_id.unique_id

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._placed.pop(internal_request_id, None)
