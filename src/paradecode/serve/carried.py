"""Carry a request from a worker that died to another, which continues after what the reader has.

An output depends only on prompt, seed and settings. So everything that the dead worker has sent
stays valid, and the next worker continues after it. A canvas is decoded again from the start,
because its undecided positions are lost, and the text that the reader already has is left out.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from paradecode.serve.call import outputs_of
from paradecode.serve.wire import Accepted, BranchNews, Done, Generate, OutputChunk, OutputEvent

FRUITLESS = 3
"""The most consecutive workers that may die with a request before they send a token.

A request that has killed this many is refused.
"""


class Carried:
    """A request on its way through workers that may die.

    Attributes:
        done: indices of the outputs that have ended.
        over: whether all outputs have ended.
        accepted: whether a worker has accepted the request; from then on no worker may refuse it.
        bits: name of the first worker's arithmetic; only a worker whose results are the same to the
            last bit may continue the request.
        fruitless: number of workers in a row that had the request and sent no token.
    """

    def __init__(self, request: Generate) -> None:
        self._request, self._began = seeded(request), time.monotonic()
        count = outputs_of(request)
        given = request.resume or [[] for _ in range(count)]
        self.done = {at for at, own in enumerate(given) if own is None}
        self.bits, self.fruitless = "", 0
        self.accepted = self.over = self._goes_on = False
        self._tokens = [list(own or ()) for own in given]
        self._characters, self._forwards = [0] * count, [0] * count
        self._skipped: list[tuple[int, int]] = [(0, 0)] * count
        self._before = [0] * count

    def message(self) -> Generate:
        """Return the request for the next worker, with the time that is left of its deadline."""
        request = self._request
        self.fruitless += 1
        if request.deadline is not None:
            left = request.deadline - (time.monotonic() - self._began)
            request = replace(request, deadline=max(0.0, left))
        if not self.accepted:
            return request
        self._skipped = [(len(own), n) for own, n in zip(self._tokens, self._characters)]
        self._before = list(self._forwards)
        tokens = [None if at in self.done else list(own) for at, own in enumerate(self._tokens)]
        return replace(request, resume=tokens)

    def take(self, event: OutputEvent) -> OutputEvent | None:
        """Return what is new to the reader in an event, or None if the reader has all of it."""
        if isinstance(event, Accepted):
            known, self.accepted, self._goes_on = self.accepted, True, event.resumed
            if not (known or event.resumed):  # A canvas starts again, so no token counts as sent.
                self._tokens = [[] for _ in self._tokens]
            return None if known else event
        if isinstance(event, BranchNews):  # A branch is no output, so nothing is recorded.
            return event
        self.fruitless = 0
        if isinstance(event, Done):
            self.done.add(event.index)
            self.over = len(self.done) == len(self._tokens)
            forwards = event.stats.forwards + self._before[event.index] * self._goes_on
            return replace(event, stats=replace(event.stats, forwards=forwards))
        if isinstance(event, OutputChunk):
            return self._unseen(event)
        self.over = True
        return event

    def _unseen(self, event: OutputChunk) -> OutputChunk | None:
        at = event.index
        if self._goes_on:
            before = self._before[at]
            commits = [commit._replace(forward=commit.forward + before) for commit in event.commits]
            event = replace(event, forward=event.forward + before, commits=commits)
        elif any(self._skipped[at]):
            tokens, characters = self._skipped[at]
            self._skipped[at] = (
                max(0, tokens - len(event.tokens)), max(0, characters - len(event.text))
            )  # fmt: skip
            event = event.behind(tokens, characters)
            if not (event.tokens or event.text):
                return None
        self._tokens[at] += event.tokens
        self._characters[at] += len(event.text)
        self._forwards[at] = event.forward
        return event


def seeded(request: Generate) -> Generate:
    """Return the request with a seed, because without one each worker would choose its own."""
    if request.sampling.get("seed") is not None:
        return request
    return replace(request, sampling={**request.sampling, "seed": secrets.randbits(63)})
