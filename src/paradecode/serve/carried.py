"""What the reader of a request has, so that another worker can go on from there.

An output is a function of prompt, seed and settings. So what a worker that died has sent stays
true, and the next one continues behind it; a canvas, whose undecided part is lost, is decoded
again, and what the reader has is left out.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from paradecode.serve.wire import Done, Generate, OutputChunk, OutputEvent


class Carried:
    """
    Attributes:
        done: outputs that have ended.
    """

    def __init__(self, outputs: int) -> None:
        self.done: set[int] = set()
        self._tokens: list[list[int]] = [[] for _ in range(outputs)]
        self._characters, self._forwards = [0] * outputs, [0] * outputs
        self._skipped: list[tuple[int, int]] = [(0, 0)] * outputs
        self._before = [0] * outputs

    def resumed(self, request: Generate) -> Generate:
        """The request for the next worker."""
        self._skipped = [(len(own), n) for own, n in zip(self._tokens, self._characters)]
        self._before = list(self._forwards)
        if not (self.done or any(self._tokens)):
            return request
        left = [None if at in self.done else own for at, own in enumerate(self._tokens)]
        return replace(request, resume=left)

    def take(self, event: OutputEvent, goes_on: bool) -> OutputEvent | None:
        """The event as the reader is to see it; None if it has all of that.

        Args:
            goes_on: whether the worker began behind what the reader has.
        """
        if isinstance(event, Done):
            self.done.add(event.index)
        if not isinstance(event, OutputChunk):
            return event
        at = event.index
        if goes_on:
            event = replace(event, forward=event.forward + self._before[at])
        else:
            tokens, characters = self._skipped[at]
            self._skipped[at] = (
                max(0, tokens - len(event.tokens)), max(0, characters - len(event.text))
            )  # fmt: skip
            if tokens or characters:
                scores = None if event.logprobs is None else event.logprobs.behind(tokens)
                event = replace(event, tokens=event.tokens[tokens:], logprobs=scores,
                                text=event.text[characters:])  # fmt: skip
                if not (event.tokens or event.text):
                    return None
        self._tokens[at] += event.tokens
        self._characters[at] += len(event.text)
        self._forwards[at] = event.forward
        return event


def seeded(request: Generate) -> Generate:
    """The request with a seed: one without would get another from each worker."""
    if request.sampling.get("seed") is not None:
        return request
    return replace(request, sampling={**request.sampling, "seed": secrets.randbits(63)})
