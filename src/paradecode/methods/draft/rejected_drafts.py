"""Drafts that were rejected: what was right in them, but for its place, may be right later."""

from __future__ import annotations

from collections import deque


class RejectedDrafts:
    """The latest drafts that were not accepted to their end; at most ``most`` of them."""

    def __init__(self, most: int) -> None:
        self._kept = deque[list[int]](maxlen=most)

    def keep(self, tokens: list[int]) -> None:
        """Note a draft; one that is there already becomes the latest."""
        if tokens in self._kept:
            self._kept.remove(tokens)
        self._kept.append(tokens)

    def after(self, token: int, most: int) -> list[list[int]]:
        """What followed the first ``token`` in each draft that has it: the latest first, each once.

        Args:
            most: tokens of each.
        """
        found: list[list[int]] = []
        for draft in reversed(self._kept):
            if token in draft:
                tail = draft[draft.index(token) + 1 :][:most]
                if tail and tail not in found:
                    found.append(tail)
        return found
