"""The plan of a load run: endpoints, loads and numbers of requests, with checks of every field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from paradecode.core.checks import maybe, number, one_of, whole
from paradecode.core.errors import InvalidInput

MAX_CLIENTS = 1024
CHECKS = {
    "requests": whole(1, 1_000_000),
    "rounds": whole(1, 1000),
    "warmup": whole(0, 10_000),
    "timeout": number(0.001, 86_400),
    "max_tokens": maybe(whole(1, 1 << 20)),
    "slo_ttft": maybe(number(0.0)),
    "slo_tpot": maybe(number(0.0)),
    "arrivals": one_of("poisson", "constant"),
    "api": one_of("chat", "completions"),
    "count": one_of("usage", "tokenizer"),
}
"""Checks of the plan's fields; the command's options have the same names."""

RESERVED = frozenset({"model", "messages", "prompt", "stream", "stream_options", "n"})
"""Fields of the request's JSON that the client sets and ``body`` may not."""


@dataclass(frozen=True)
class Endpoint:
    """A server, and the fields that its requests have beside the prompt.

    Attributes:
        url: address up to and including ``/v1``.
        model: the server's name for the model; None takes the first model that the server lists.
        body: further fields of the request's JSON.
    """

    name: str
    url: str
    model: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OfferedLoad:
    """A load: a number of ``clients`` (closed loop), or a ``rate`` per second (open loop)."""

    clients: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        if self.clients is not None:
            return f"c={self.clients}"
        return f"{self.rate:g}/s"

    def check(self) -> None:
        """Check that the load can be driven; raises InvalidInput if it cannot."""
        if self.clients is not None and not 1 <= self.clients <= MAX_CLIENTS:
            raise InvalidInput("--concurrency", self.clients, f"give 1 to {MAX_CLIENTS}")
        if self.rate is not None and not 0 < self.rate <= 10_000:
            raise InvalidInput("--rate", self.rate, "give more than 0 and at most 10000 a second")


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """The settings of a load run. Every endpoint gets the same requests in the same order.

    Attributes:
        endpoints: the servers; all are compared with the first one.
        loads: the loads, each of which is driven in every round.
        requests: number of requests in one round, for each endpoint and load; at least one for each
            client.
        rounds: number of rounds; each round draws a new order of the endpoints.
        warmup: number of requests before each measurement, which do not count. They are repeated
            until 80 tokens were answered. 0 means no warm-up.
        arrivals: distribution of the arrivals in an open loop.
        max_tokens: upper bound on the token limits of the prompts.
        timeout: seconds that one request may take.
        count: who counts output tokens: each server's ``usage``, or one ``tokenizer`` for all.
        slo_ttft, slo_tpot: objectives of a good request: the most seconds to the first text, and
            per token after it; None sets no bound.
        seed: seed of the choice of prompts, of the orders and of the arrivals.
    """

    endpoints: tuple[Endpoint, ...]
    loads: tuple[OfferedLoad, ...] = (OfferedLoad(clients=1),)
    requests: int = 32
    rounds: int = 3
    warmup: int = 2
    arrivals: str = "poisson"
    api: str = "chat"
    max_tokens: int | None = None
    timeout: float = 300.0
    count: str = "usage"
    slo_ttft: float | None = None
    slo_tpot: float | None = None
    seed: int = 0

    def requests_of(self, load: OfferedLoad) -> int:
        """Return the number of requests in one round."""
        return max(self.requests, load.clients or 0)

    def check(self) -> None:
        """Check every field; raises InvalidInput, which names the option that cannot be used."""
        names = [endpoint.name for endpoint in self.endpoints]
        if not names:
            raise InvalidInput("--endpoint", [], "name at least one: --endpoint NAME=URL")
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput("--endpoint", name, "give each endpoint a name of its own")
        if not self.loads:
            raise InvalidInput("--concurrency", [], "give at least one load")
        for load in self.loads:
            load.check()
        for name, check in CHECKS.items():
            check("--" + name.replace("_", "-"), getattr(self, name))


def read_endpoints(
    given: Sequence[str], bodies: Sequence[str] = (), model: str | None = None
) -> tuple[Endpoint, ...]:
    """Read endpoints from the command line.

    Args:
        given: ``NAME=URL``; a URL without a path gets ``/v1``.
        bodies: fields of the requests: ``JSON`` for all endpoints, or ``NAME=JSON`` for one; later
            texts override earlier ones.
        model: name of the model at all endpoints; None takes each server's first model.

    Raises:
        InvalidInput: an option cannot be read; the error names it.
    """
    fields: dict[str, dict[str, Any]] = {}
    urls: dict[str, str] = {}
    for text in given:
        name, equals, url = text.partition("=")
        if not equals or not name.strip():
            raise InvalidInput("--endpoint", text, "write NAME=URL")
        if name in urls:
            raise InvalidInput("--endpoint", name, "give each endpoint a name of its own")
        urls[name], fields[name] = _url(url), {}
    for text in bodies:
        name, _, rest = ("", "", text) if text.lstrip().startswith("{") else text.partition("=")
        if name and name not in fields:
            raise InvalidInput("--body", text, f"name one of {', '.join(fields)}")
        for own in [name] if name else list(fields):
            fields[own].update(_body(rest))
    return tuple(Endpoint(name, url, model, fields[name]) for name, url in urls.items())


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username:
        raise InvalidInput("--endpoint", text, "give a URL such as http://127.0.0.1:8000")
    return text.rstrip("/") if parts.path.strip("/") else text.rstrip("/") + "/v1"


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidInput("--body", text, "write a JSON object, or NAME={...}")
    for name in body:
        if name in RESERVED:
            raise InvalidInput("--body", name, "this field is the client's own")
    return body
