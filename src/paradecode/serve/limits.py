"""Count what each key has used of its limits, and decide when a waiting request may start."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.keys import KeyLimits

MINUTE = 60.0
RECENT = 0.1
"""Weight of the newest request in the mean duration. A higher weight follows changes faster."""

REFUSED = ("requests", "tokens", "sequences")
RATE_HEADERS = [
    f"x-ratelimit-{what}-{of}" for of in REFUSED[:2] for what in ("limit", "remaining", "reset")
]

Clock = Callable[[], float]


@dataclass
class Use:
    """An amount (requests or tokens) that counts against a limit for a minute from ``at`` on."""

    at: float
    amount: int
    over: bool = False


class RateWindow:
    """A limit on the amount (requests or tokens) within any 60 seconds."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit, self._clock = limit, clock
        self._uses: deque[Use] = deque()
        self._total = 0

    @property
    def left(self) -> int:
        """The amount that may still be used now."""
        return max(0, self.limit - self._forget())

    def wait(self, amount: int) -> float:
        """Return the seconds until ``amount`` may be used, if nothing else is used meanwhile.

        ``amount`` is at most the limit.
        """
        missing = amount - self.limit + self._forget()
        until = now = self._clock()
        for use in self._uses:
            if missing <= 0:
                break
            missing, until = missing - use.amount, use.at + MINUTE
        return until - now

    def reset(self) -> float:
        """Return the seconds until nothing counts against the limit."""
        return self.wait(self.limit)

    def add(self, amount: int) -> Use:
        use = Use(self._clock(), amount)
        self._uses.append(use)
        self._total += amount
        return use

    def change(self, use: Use, amount: int) -> None:
        """Replace the estimated amount of a use by ``amount``."""
        if not use.over:
            self._total += amount - use.amount
            use.amount = amount

    def _forget(self) -> int:
        """Forget uses that are older than a minute, and return the amount that still counts."""
        now = self._clock()
        while self._uses and self._uses[0].at + MINUTE <= now:
            old = self._uses.popleft()
            self._total, old.over = self._total - old.amount, True
        return self._total


class Stay:
    """An admitted request, and the tokens that it uses.

    Until the worker has counted, each prompt counts with its estimated length, and each output with
    the most tokens that it may have.

    Attributes:
        prompt, output: numbers of tokens so far.
    """

    def __init__(self, prompts: Sequence[int], outputs: int, window: RateWindow | None) -> None:
        self._guesses, self._outputs, self._window = dict(enumerate(prompts)), outputs, window
        self.prompt = self.output = 0
        self._use: Use | None = None
        self.begin()

    @property
    def tokens(self) -> int:
        return self.prompt + sum(self._guesses.values()) + self._outputs

    def begin(self) -> None:
        """Count the request's tokens in the window, from now on."""
        if self._window is not None:
            if self._use is not None:
                self._window.change(self._use, 0)
            self._use = self._window.add(self.tokens)

    def accepted(self, prompt: int, tokens: int) -> None:
        """Replace the estimated length of a prompt by the worker's count."""
        self._guesses.pop(prompt, None)
        self.prompt += tokens
        self._tell()

    def end(self) -> None:
        self._guesses.clear()
        self._outputs = self.output
        self._tell()

    def _tell(self) -> None:
        if self._window is not None and self._use is not None:
            self._window.change(self._use, self.tokens)


class Account:
    """The usage of the holder of one key. An account without a name is shared by everybody.

    Attributes:
        tenant: name that separates the account's caches from others.
        running, waiting: numbers of outputs that run, and that wait.
        requests, prompt_tokens, output_tokens: counts since the server started.
        refused: number of refused requests, by limit: requests, tokens, sequences.
    """

    def __init__(
        self, name: str, limits: KeyLimits, tenant: str, clock: Clock = time.monotonic
    ) -> None:
        self.name, self.limits, self.tenant, self._clock = name, limits, tenant, clock
        rates = limits.requests_per_minute, limits.tokens_per_minute
        self._requests, self._tokens = (RateWindow(r, clock) if r else None for r in rates)
        self._queue: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._order, self._mean = count(), 1.0
        self.running = self.requests = self.prompt_tokens = self.output_tokens = 0
        self.refused = Counter(dict.fromkeys(REFUSED, 0))

    @property
    def waiting(self) -> int:
        return sum(outputs for _, _, outputs, _ in self._queue)

    def request(self) -> None:
        """Count a request. Raise ApiError 429 if it exceeds the limit."""
        if self._requests is not None:
            self._check("requests", self._requests, 1)
            self._requests.add(1)
        self.requests += 1

    def priority(self, asked: int | None) -> int:
        """Return the priority of a request.

        Raise ApiError 400 if the wanted one is out of range.
        """
        low, high = self.limits.priorities
        if asked is not None and not low <= asked <= high:
            raise wrong("priority", f"this key may ask for {low} to {high}")
        return min(max(low, asked or 0), high)

    def check_salt(self, salt: str | None) -> None:
        """Raise ApiError 400 for a ``cache_salt`` that the key may not use."""
        salts = self.limits.salts
        if salt is not None and salts is not None and salt not in salts:
            raise wrong("cache_salt", "leave it out, or use one that was allowed to this key")

    @asynccontextmanager
    async def stay(
        self, prompts: Sequence[int], outputs: int, most: int, priority: int, seconds: float
    ) -> AsyncIterator[Stay]:
        """Wait until there is room for a request's outputs. They count until the context ends.

        Args:
            prompts: estimated tokens of each prompt.
            outputs: number of outputs, of at most ``most`` tokens each.
            seconds: the most seconds that the request may wait.

        Raises:
            ApiError: 400 for more outputs than the key may ever have at the same time, 429 if this
                minute's tokens are used up or too many outputs wait, 408 after ``seconds``.
        """
        room, tokens = self.limits.sequences, sum(prompts) + outputs * most
        if room is not None and outputs > room:
            raise wrong("n", f"this key may have {room} outputs at the same time")
        if self._tokens is not None:
            if tokens > self._tokens.limit:
                fix = f"this key may use {self._tokens.limit} tokens a minute: ask for fewer"
                raise wrong("max_tokens", fix)
            self._check("tokens", self._tokens, tokens)
        stay = Stay(prompts, outputs * most, self._tokens)
        try:
            await self._turn(outputs, priority, seconds)
            began = self._clock()
            stay.begin()
            try:
                yield stay
            finally:
                self._mean += RECENT * (self._clock() - began - self._mean)
                self.running -= outputs
                self._let_in()
        finally:
            stay.end()
            self.prompt_tokens += stay.prompt
            self.output_tokens += stay.output

    async def _turn(self, outputs: int, priority: int, seconds: float) -> None:
        """Wait until the outputs may run. They count as running when this returns."""
        if not self._queue and self._has_room(outputs):
            self.running += outputs
            return
        excess = self.waiting + outputs - self.limits.queue
        if excess > 0:
            room = self.limits.sequences or 1
            what = f"{room} outputs of this key are running and {self.waiting} wait"
            raise self._refusal("sequences", what, self._mean * excess / room)
        place = (priority, next(self._order), outputs, asyncio.get_running_loop().create_future())
        heapq.heappush(self._queue, place)
        try:
            await asyncio.wait([place[3]], timeout=seconds)
            if not place[3].done():
                raise ApiError(408, "the deadline came while other outputs of this key ran")
        except BaseException:
            if place[3].done():
                self.running -= outputs
            else:
                self._queue.remove(place)
                heapq.heapify(self._queue)
            self._let_in()
            raise

    def _has_room(self, outputs: int) -> bool:
        room = self.limits.sequences
        return room is None or self.running + outputs <= room

    def _let_in(self) -> None:
        while self._queue and self._has_room(self._queue[0][2]):
            _, _, outputs, place = heapq.heappop(self._queue)
            self.running += outputs
            place.set_result(None)

    def _check(self, what: str, window: RateWindow, amount: int) -> None:
        if (wait := window.wait(amount)) > 0:
            said = f"this key's limit of {window.limit} {what} a minute is reached"
            raise self._refusal(what, said, wait)

    def _refusal(self, what: str, said: str, wait: float) -> ApiError:
        self.refused[what] += 1
        message = f"{said}; try again in {wait:.1f} s"
        return ApiError(429, message, code="rate_limit_exceeded", retry_after=wait)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return OpenAI's headers that say what is left of each limit that the key has."""
        found = {}
        for what, window in (("requests", self._requests), ("tokens", self._tokens)):
            if window is not None:
                found[f"limit-{what}"] = f"{window.limit}"
                found[f"remaining-{what}"] = f"{window.left}"
                found[f"reset-{what}"] = f"{window.reset():.3f}s"
        return [(f"x-ratelimit-{name}".encode(), said.encode()) for name, said in found.items()]
