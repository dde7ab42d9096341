"""Keep responses in memory for a while, so that a later request can continue one.

Number and size are bounded for each key, and the oldest response is dropped first. Only the same
key can see a response.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from paradecode.serve.errors import ApiError
from paradecode.serve.limits import Account

MOST_BYTES = 16 << 20
"""The most bytes of all responses of one key, with their conversations."""


@dataclass(frozen=True)
class Kept:
    """A response, its conversation including the response, and the size of both in bytes."""

    answer: dict[str, Any]
    messages: list[dict[str, Any]]
    size: int


class StoredResponses:
    """The stored responses of all keys.

    Args:
        most: the most responses of each key; 0 keeps none.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[Account, OrderedDict[str, Kept]] = {}

    def put(self, account: Account, answer: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Keep a response with the conversation that it ends."""
        size = len(json.dumps([answer, messages], ensure_ascii=False).encode())
        own = self._kept.setdefault(account, OrderedDict())
        own[answer["id"]] = Kept(answer, messages, size)
        while len(own) > self.most or sum(kept.size for kept in own.values()) > MOST_BYTES:
            own.popitem(last=False)

    def get(self, account: Account, name: str, param: str | None = None) -> Kept:
        """Return one of the account's own responses. Raise ApiError 404 if there is none."""
        found = self._kept.get(account, OrderedDict()).get(name)
        if found is None:
            message = "there is no such response here: it is too old, or it was not stored"
            raise ApiError(404, message, param=param, code="previous_response_not_found")
        return found

    def remove(self, account: Account, name: str) -> None:
        """Delete one of the account's own responses. Raise ApiError 404 if there is none."""
        self.get(account, name)
        del self._kept[account][name]
