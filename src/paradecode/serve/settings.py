"""The settings of ``paradecode serve``, which are checked before a model is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from paradecode.core.checks import attributes, number, whole
from paradecode.core.errors import InvalidInput
from paradecode.serve.keys import Key, check_keys
from paradecode.serve.pool import HANG_SECONDS, LOAD_SECONDS
from paradecode.serve.residency import OnDemand, Served

ROUTES = {
    "health": ("/health", "/v1/health"),
    "metrics": ("/metrics",),
    "openapi": ("/openapi.json",),
}
"""Routes that may be public, that is need no key: name -> paths, with all paths below them."""

PAGE = ("/", "/page")
"""Paths that never need a key.

The page's files hold nothing secret, and the key is typed in there.
"""

PATIENCE = ("body_seconds", "header_seconds", "write_seconds", "ping_seconds")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
RANGES = {
    "body_bytes": whole(1, 8 << 20),
    "header_bytes": whole(256, 1 << 20),
    "connections": whole(1, 1 << 16),
    "outputs": whole(1, 1 << 12),
    "stored_responses": whole(0, 1 << 16),
    "search_tokens": whole(1, (1 << 31) - 1),
    **dict.fromkeys(PATIENCE, number(0.1, 3600)),
    "request_seconds": number(0.1, 86400),
    "drain_seconds": number(0, 86400),
    "hang_seconds": number(1, 86400),
    "load_seconds": number(1, 86400),
}


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of the HTTP server.

    Attributes:
        models: the served models with their names. A request without a name gets the first model.
        host, port: the address to listen on. Port 0 takes a free port.
        keys: keys, each of which opens every route. The holders of keys share nothing, and each key
            has its own limits.
        public: names of routes that need no key, out of health, metrics and openapi.
        allowed_hosts: further names that the Host header may have if the server has no key.
        force: whether other machines may reach the server although it has no key.
        body_bytes, header_bytes: the most bytes of one request.
        body_seconds, header_seconds: seconds after which a request that has not arrived is dropped.
        write_seconds: seconds after which a client that reads nothing of its answer is dropped.
        ping_seconds: seconds between two comments that keep a silent stream alive.
        connections: the most connections at the same time. Further ones get a 503.
        outputs: the most outputs of one request: ``n`` times the number of prompts, or the branches
            of searches at a time.
        search_tokens: the most tokens of all branches of one search.
        request_seconds: the longest deadline in seconds, which is also the deadline of a request
            without one.
        drain_seconds: seconds for which a stopping server waits for the accepted requests.
        hang_seconds: seconds after which a worker that has work and does not answer is killed.
        load_seconds: seconds after which a worker that has not loaded its model is killed.
        ignore_unknown: whether an unknown field of a request is ignored even if its name is close
            to a known name.
        strict: whether fields and types are refused that have no effect and are in no table.
        stored_responses: the most responses that are kept in memory for each key.
        aliases: further names of models: a name, in which ``*`` stands for any text -> a model's
            name.
        on_demand: when models are loaded and unloaded; None means that all are always loaded.
        open_objects: whether objects may have properties that their JSON schema does not name, as
            in the standard.
        origins: origins of web pages that may use the server from a browser; ``*`` is any.
        log_requests: whether a line is logged for each request, without prompt or answer.
    """

    models: tuple[Served, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[Key, ...] = ()
    public: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    force: bool = False
    body_bytes: int = 4 << 20
    header_bytes: int = 32 << 10
    body_seconds: float = 30.0
    header_seconds: float = 10.0
    write_seconds: float = 30.0
    ping_seconds: float = 15.0
    connections: int = 1024
    outputs: int = 64
    search_tokens: int = 1 << 16
    request_seconds: float = 600.0
    drain_seconds: float = 30.0
    hang_seconds: float = HANG_SECONDS
    load_seconds: float = LOAD_SECONDS
    ignore_unknown: bool = False
    strict: bool = False
    stored_responses: int = 0
    aliases: tuple[tuple[str, str], ...] = ()
    on_demand: OnDemand | None = None
    open_objects: bool = False
    origins: tuple[str, ...] = ()
    log_requests: bool = True

    def __post_init__(self) -> None:
        if not self.models:
            raise InvalidInput("models", [], "name at least one")
        names = [model.name for model in self.models]
        for name in names:
            if not 0 < len(name) <= 256 or not name.isprintable():
                raise InvalidInput("model name", name, "give 1 to 256 printable characters")
            if names.count(name) > 1:
                raise InvalidInput("model name", name, "give each model a name of its own")
        if not 0 <= self.port < 1 << 16:
            raise InvalidInput("port", self.port, "give 0 to 65535")
        for alias, name in self.aliases:
            if name not in names:
                fix = "give ALIAS=NAME with the name of a served model"
                raise InvalidInput("alias", f"{alias}={name}", fix)
            if not 0 < len(alias) <= 256 or not alias.isprintable():
                raise InvalidInput("alias", alias, "give 1 to 256 printable characters")
        check_keys(self.keys)
        for name in self.public:
            if name not in ROUTES:
                raise InvalidInput("public", name, f"use one of {', '.join(ROUTES)}")
        for host in self.allowed_hosts:
            if not re.fullmatch(r"[\w.-]{1,253}", host, re.ASCII):
                raise InvalidInput("allowed-host", host, "give a name such as host.docker.internal")
        for origin in self.origins:
            if not re.fullmatch(r"\*|https?://[^/\s]{1,255}", origin):
                raise InvalidInput("origin", origin, "give * or one such as https://example.org")
        local = self.host in LOOPBACK or self.host.startswith("127.")
        if not (local or self.keys or self.force):
            raise InvalidInput(
                "host", self.host, "set a key (--api-key or --keys), or --force to serve everybody"
            )
        attributes(self, RANGES)

    def name_of(self, name: str | None) -> str | None:
        """Return the served model that a request names, or None if there is no such model.

        A request without a name gets the first model.
        """
        names = [model.name for model in self.models]
        if name is None or name in names:
            return names[0] if name is None else name
        return next((own for alias, own in self.aliases if fnmatchcase(name, alias)), None)

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The allowed names in the Host header. None allows all names."""
        return None if self.keys or self.force else (*LOOPBACK, self.host, *self.allowed_hosts)
