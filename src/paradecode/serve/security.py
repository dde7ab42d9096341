"""Decide who may call the server: keys, tenants, and the Host header."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paradecode.serve.errors import ApiError
from paradecode.serve.keys import Key, KeyLimits
from paradecode.serve.limits import Account
from paradecode.serve.settings import PAGE, ROUTES, ServerSettings


class Guard:
    """ASGI middleware that requires a known key on every route that is not public.

    A server without keys accepts only its own names in the Host header. Otherwise a web page could
    reach the server through a DNS name that the page's author controls.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, accounts: Mapping[bytes, Account]
    ) -> None:
        self.app, self.header_bytes, self.accounts = app, settings.header_bytes, accounts
        self.nobody = Account("nobody", KeyLimits(operator=True), tenant(""))
        self.open = Routes(settings)
        self.hosts = settings.hosts and {host.lower() for host in settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            given = digest(_bearer(headers))
            refusal = self._too_large(scope) or self._refusal(scope["path"], headers, given)
            if refusal is not None:
                scope["state"]["note"].error = refusal
                await refusal.response(scope["path"])(scope, receive, send)
                return
            scope["state"]["account"] = account = self.accounts.get(given, self.nobody)
            await self.app(scope, receive, _with_limits(send, account))
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self.app(scope, receive, send)

    def _too_large(self, scope: Scope) -> ApiError | None:
        """Return an error if the headers are too large.

        The parser limits only incomplete headers.
        """
        size = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size <= self.header_bytes:
            return None
        return ApiError(431, f"send at most {self.header_bytes} bytes of path and headers")

    def _refusal(self, path: str, headers: Headers, given: bytes) -> ApiError | None:
        if self.hosts is not None and _hostname(headers.get("host", "")) not in self.hosts:
            said = "the Host header is not this server's: start it with --allowed-host or --api-key"
            return ApiError(403, said, code="unknown_host")
        if not self.accounts or path in self.open:
            return None
        # Digests have equal lengths, so the time of the comparison does not show the length of a
        # key.
        matches = [hmac.compare_digest(given, key) for key in self.accounts]  # Never stop early.
        if any(matches):
            return None
        return no_key()


class Routes:
    """The paths that need no key."""

    def __init__(self, settings: ServerSettings) -> None:
        self._paths = {*PAGE, *(path for name in settings.public for path in ROUTES[name])}
        self._below = tuple(f"{path}/" for path in self._paths if path != "/")

    def __contains__(self, path: str) -> bool:
        return path in self._paths or path.startswith(self._below)


def no_key() -> ApiError:
    return ApiError(
        401, "give a valid key as 'Authorization: Bearer KEY'", code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )  # fmt: skip


def accounts_of(keys: Iterable[Key]) -> dict[bytes, Account]:
    """Return the account of each key, by the key's digest. A single key is an operator's key."""
    keys = tuple(keys)
    alone = len(keys) == 1
    return {
        digest(key.key): Account(
            key.name, replace(key, operator=key.operator or alone), tenant(key.key)
        )
        for key in keys
    }


def tenant(key: str, salt: str | None = None) -> str:
    """Return the name under which a tenant's caches and learned stores are kept.

    Requests share these only if they have the same key and the same ``salt``. The name is a digest,
    so that keys are not passed on. Different pairs of key and salt give different names.
    """
    if not key and salt is None:
        return ""
    own = digest(key).hex() if key else ""
    return f"{own}.{digest(salt).hex() if salt is not None else ''}"


def _with_limits(send: Send, account: Account) -> Send:
    """Return a ``send`` that adds headers to each answer, with what is left of the key's limits."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *account.headers()]
        await send(message)

    return sent


def _bearer(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return headers.get("x-api-key", "").strip()  # Anthropic's clients send it here.


def _hostname(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def digest(text: str) -> bytes:
    """Return the digest by which keys are compared. All digests have the same length."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
