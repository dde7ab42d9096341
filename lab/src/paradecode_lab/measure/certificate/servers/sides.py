"""One side of a comparison: a server, and what makes its answers plain or speculative."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.certificate.servers.client import Transport

COUNTER = re.compile(
    r"^\S*spec_decode_num_(draft|accepted)_tokens_total(?:\{.*\})? (\d+(?:\.\d+)?(?:e\+?\d\d?)?)$",
    re.M,
)
"""Counters of vLLM and Paradecode, with any labels."""
TOGETHER = 0.25
"""Chunks whose distance is below this share of plain decoding's came from one forward."""
FASTER = 1.15
"""Tokens an arrival, as a multiple of plain decoding's, from which drafts must have been kept."""
END = b""
"""The part that stands for the end of an output that ended by itself."""


@dataclass(frozen=True)
class RemoteAsk:
    """A request.

    Attributes:
        scores: whether the tokens and their log-probabilities are asked for.
    """

    prompt: str
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    scores: bool = False


@dataclass(frozen=True)
class RemoteOutput:
    """An answer.

    Attributes:
        parts: the bytes of its tokens, or of its characters if the server names no tokens; at its
            end ``END`` if it ended before the limit.
        scores: log-probability of each token, empty without tokens.
        gaps: difference between the two best log-probabilities at each token.
    """

    text: str
    parts: tuple[bytes, ...]
    scores: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()


@dataclass(frozen=True)
class DraftCount:
    """How many draft tokens were verified and kept; None if that number is not known.

    ``source`` says from where the numbers are.
    """

    drafted: int | None
    accepted: int
    source: str

    @property
    def any(self) -> bool:
        """Whether a draft was verified for certain."""
        return bool(self.drafted or self.accepted)


@dataclass(frozen=True)
class SideRun:
    """The answers to some requests, in order, the drafts that were counted, and the seconds."""

    outputs: list[RemoteOutput]
    drafts: DraftCount | None
    seconds: float


@dataclass(frozen=True)
class Side:
    """A server and the fields of its requests.

    Attributes:
        api: ``completions`` or ``chat``.
        body: fields of each request beside those of a :class:`RemoteAsk`.
    """

    name: str
    server: Transport
    api: str = "completions"
    body: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self, asks: Sequence[RemoteAsk], parallel: int, ended: Callable[[], None] = lambda: None
    ) -> SideRun:
        """Send all requests, ``parallel`` at a time, and read their answers."""
        before, started = _counted(self.server.metrics()), time.perf_counter()

        def answer(ask: RemoteAsk) -> tuple[RemoteOutput, DraftCount | None]:
            found = self.server.post(self._path, self._fields(ask))
            ended()
            try:
                return _output(found), _own_count(found)
            except (KeyError, IndexError, TypeError, AttributeError, ValueError):
                fix = "the answer is not OpenAI's"
                raise InvalidInput(f"--endpoint ({self.name})", found, fix) from None

        with ThreadPoolExecutor(parallel) as pool:
            found = list(pool.map(answer, asks))
        seconds = time.perf_counter() - started
        own = [count for _, count in found if count is not None]
        drafts: DraftCount | None = None
        if own:
            drafted, accepted = sum(c.drafted or 0 for c in own), sum(c.accepted for c in own)
            drafts = DraftCount(drafted, accepted, own[0].source)
        elif after := _counted(self.server.metrics()):
            more = {name: after[name] - before.get(name, 0) for name in after}
            drafts = DraftCount(more.get("draft", 0), more.get("accepted", 0), "/metrics")
        return SideRun([output for output, _ in found], drafts, seconds)

    def arrivals(self, ask: RemoteAsk) -> tuple[int, list[float]]:
        """Stream an answer; returns its number of tokens, and the seconds of its chunks."""
        times, tokens = [], 0
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        for at, event in self.server.events(self._path, {**self._fields(ask), **usage}):
            try:
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                choices = event.get("choices") or [{}]
                if _text(choices[0]):
                    times.append(at)
            except (AttributeError, IndexError, TypeError):
                fix = "the event is not OpenAI's"
                raise InvalidInput(f"--endpoint ({self.name})", event, fix) from None
        return tokens, times

    @property
    def _path(self) -> str:
        return "chat/completions" if self.api == "chat" else "completions"

    def _fields(self, ask: RemoteAsk) -> dict[str, Any]:
        asked: dict[str, Any] = {"max_tokens": ask.max_tokens, "temperature": ask.temperature}
        if ask.seed is not None:
            asked["seed"] = ask.seed
        if self.api == "chat":
            asked["messages"] = [{"role": "user", "content": ask.prompt}]
            scores: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
        else:
            asked["prompt"], scores = ask.prompt, {"logprobs": 2}
        return {**self.body, **asked, **(scores if ask.scores else {})}


def drafts_by_time(plain: Side, drafting: Side, asks: Sequence[RemoteAsk]) -> DraftCount | None:
    """Estimate the kept draft tokens from chunks and time; None if none can be seen.

    Chunks that arrive together count as one arrival. If the speculative side has more tokens an
    arrival than the plain side, its further tokens were drafted.
    """
    alone = [plain.arrivals(ask) for ask in asks]
    gaps = [b - a for _, times in alone for a, b in pairwise(times)]
    if not gaps:
        return None
    bound = TOGETHER * median(gaps)

    def total(found: Sequence[tuple[int, list[float]]]) -> tuple[int, int]:
        forwards = sum(
            1 + sum(b - a > bound for a, b in pairwise(times)) for _, times in found if times
        )
        return sum(tokens for tokens, _ in found), forwards

    (tokens, arrivals), (own, together) = (
        total(alone), total([drafting.arrivals(ask) for ask in asks]),
    )  # fmt: skip
    if not (arrivals and together) or own / together < FASTER * max(1.0, tokens / arrivals):
        return None
    return DraftCount(None, own - together, "chunks and time")


def _text(choice: Any) -> str:
    inner = choice.get("message") or choice.get("delta") or {}
    found = choice.get("text") or "".join(
        inner.get(name) or "" for name in ("reasoning_content", "content")
    )
    if not isinstance(found, str):
        raise TypeError
    return found


def _output(answer: Any) -> RemoteOutput:
    choice = answer["choices"][0]
    text, scores = _text(choice), choice.get("logprobs") or {}
    if scores.get("content"):  # Of chats, and in llama.cpp of completions too.
        listed = [
            (
                entry["token"].encode() if entry.get("bytes") is None else bytes(entry["bytes"]),
                entry["logprob"],
                [other["logprob"] for other in entry.get("top_logprobs") or ()],
            )
            for entry in scores["content"]
        ]
    else:
        names, values = scores.get("tokens") or (), scores.get("token_logprobs") or ()
        top = scores.get("top_logprobs") or [{}] * len(names)
        listed = [
            (token.encode(), value, list((others or {}).values()))
            for token, value, others in zip(names, values, top, strict=True)
        ]
    listed = [entry for entry in listed if entry[0]]  # The end is a part of its own.
    parts = [part for part, _, _ in listed] or [letter.encode() for letter in text]
    if choice.get("finish_reason") != "length":
        parts.append(END)
    gaps = [_gap(others) for _, _, others in listed]
    return RemoteOutput(text, tuple(parts), tuple(float(s) for _, s, _ in listed), tuple(gaps))


def _gap(scores: Sequence[float]) -> float:
    best = sorted(scores, reverse=True)
    return best[0] - best[1] if len(best) > 1 else float("nan")


def _own_count(answer: Any) -> DraftCount | None:
    """Return the drafts that an answer counts itself, as those of llama.cpp and OpenAI do."""
    timings = answer.get("timings")
    if timings is not None:
        drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        return DraftCount(int(drafted), int(accepted), "the answers' timings")
    details = (answer.get("usage") or {}).get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens") or 0
    rejected = details.get("rejected_prediction_tokens") or 0
    if not (accepted or rejected):
        return None
    return DraftCount(accepted + rejected, accepted, "the answers' usage")


def _counted(metrics: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in COUNTER.findall(metrics):
        found[name] = found.get(name, 0) + int(float(value))
    return found
