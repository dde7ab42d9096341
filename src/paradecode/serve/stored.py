"""Responses that are kept for a while, so that a later request can go on behind one.

They are in memory, a bounded number and size for each key, and nobody else sees them; the oldest
goes first.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from paradecode.serve.errors import ApiError
from paradecode.serve.limits import Account

MOST_BYTES = 16 << 20
"""Bytes of all responses of one key, with their conversations."""


@dataclass(frozen=True)
class Kept:
    """A response, and the conversation up to its end."""

    answer: dict[str, Any]
    messages: list[dict[str, Any]]
    size: int


class StoredResponses:
    """The responses of all keys.

    Args:
        most: the most responses of a key; 0 keeps none.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[Account, OrderedDict[str, Kept]] = {}

    def put(self, account: Account, answer: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Keep a response with the messages that it ends."""
        size = len(json.dumps([answer, messages], ensure_ascii=False).encode())
        own = self._kept.setdefault(account, OrderedDict())
        own[answer["id"]] = Kept(answer, messages, size)
        while len(own) > self.most or sum(kept.size for kept in own.values()) > MOST_BYTES:
            own.popitem(last=False)

    def get(self, account: Account, name: str, param: str | None = None) -> Kept:
        """One of the account's own responses. Raises ApiError 404."""
        found = self._kept.get(account, OrderedDict()).get(name)
        if found is None:
            message = "there is no such response here: it is too old, or it was not stored"
            raise ApiError(404, message, param=param, code="previous_response_not_found")
        return found

    def remove(self, account: Account, name: str) -> None:
        """Forget one of the account's own responses. Raises ApiError 404."""
        self.get(account, name)
        del self._kept[account][name]
