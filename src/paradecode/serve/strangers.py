"""Refuse who shows no valid key before a connection has a transport, a parser or an application."""

from __future__ import annotations

from paradecode.serve import heads
from paradecode.serve.log import Log, Note
from paradecode.serve.metrics import Metrics
from paradecode.serve.security import Routes, no_key
from paradecode.serve.settings import ServerSettings


class Strangers:
    """Answers the first request of a client without a valid key.

    Later requests of its connection are refused by ``Guard``, with the same words.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics, log: Log | None) -> None:
        self._keyed, self._open = bool(settings.keys), Routes(settings)
        self._origins = frozenset(origin.encode() for origin in settings.origins)
        self._metrics, self._log, self._error = metrics, log, no_key()
        self._usual, self._ollama = (heads.answer(self._error, path) for path in ("", "/api/"))

    def refusal(self, head: bytes) -> bytes | None:
        """Return the answer to a head without a valid key; None if its route needs no key."""
        path = heads.path(head)
        preflight = bool(self._origins) and head.startswith(b"OPTIONS ")
        if not self._keyed or preflight or path in self._open:
            return None
        note = Note(error=self._error)
        self._metrics.answered("other", self._error.status)
        if self._log is not None:
            self._log.stranger(note, "other", self._error.status, 0.0)
        answer = self._ollama if path.startswith("/api/") else self._usual
        if head.startswith(b"HEAD "):
            answer = answer[: answer.index(heads.END) + len(heads.END)]
        own = b"\r\nx-request-id: %s\r\n%s" % (note.id.encode(), self._cors(head))
        return answer.replace(b"\r\n", own, 1)

    def _cors(self, head: bytes) -> bytes:
        """Return the headers with which a page of an allowed origin may read the answer."""
        if not self._origins:
            return b""
        origin = heads.shown_origin(head)
        shown = b"*" if b"*" in self._origins else origin
        if not origin or shown not in self._origins:
            return b"vary: Origin\r\n"
        return b"access-control-allow-origin: %s\r\nvary: Origin\r\n" % shown
