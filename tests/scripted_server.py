"""A server in the same process, whose law is written down, and whose speculation can be wrong."""

import random
from collections.abc import Iterator, Mapping
from itertools import accumulate
from threading import Lock
from typing import Any

from paradecode_lab.measure.certificate.servers.places import LINES

CHANCES = (0.5, 0.47, 0.03)
"""Chances of the two words that end a line, and of a third one."""


class ScriptedServer:
    """Answers like an OpenAI-compatible server.

    A request whose body has ``drafts`` is speculative. At temperature 0 and with a seed the answer
    to a prompt is always the same. Else the words that end a line are drawn.

    Attributes:
        last: the last prompt at temperature 0.
        shift: what speculation adds to the chance of a line's first word, and takes from another.
        spoils: prompts whose speculative answer differs at a token.
        moves: prompts whose every second plain answer differs at a token.
        noise: the most by which the log-probabilities of an answer differ from another's.
        counts: how drafts are counted: "timings", "metrics", "chunks" or "" for not at all.
    """

    def __init__(
        self, seed: int, shift: float = 0.0, spoils: tuple[str, ...] = (),
        moves: tuple[str, ...] = (), noise: float = 0.0, counts: str = "timings",
    ) -> None:  # fmt: skip
        self.shift, self.spoils, self.moves, self.counts = shift, spoils, moves, counts
        self.noise = noise
        self.chance, self.lock, self.drafted, self.asked = random.Random(seed), Lock(), 0, 0
        self.last = ""

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        with self.lock:
            drafts = bool(body.get("drafts"))
            tokens = self.tokens(body, drafts)
            self.drafted += 2 * drafts
        choice: dict[str, Any] = {"text": "".join(tokens), "finish_reason": "length"}
        if body.get("logprobs"):
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": [-0.5 - self.noise * (self.asked % 2)] * len(tokens),
                "top_logprobs": [{token: -0.5, "else": -1.25} for token in tokens],
            }  # fmt: skip
        answer: dict[str, Any] = {"choices": [choice]}
        if self.counts == "timings":
            answer["timings"] = {"draft_n": 2, "draft_n_accepted": 1} if drafts else {}
        return answer

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[float, Any]]:
        drafts = bool(body.get("drafts")) and self.counts == "chunks"
        tokens = self.tokens(body, drafts)
        for number, token in enumerate(tokens):
            yield float(number // 2 if drafts else number), {"choices": [{"text": token}]}
        yield float(len(tokens)), {"choices": [], "usage": {"completion_tokens": len(tokens)}}

    def metrics(self) -> str:
        if self.counts != "metrics":
            return ""
        return (
            f'vllm:spec_decode_num_draft_tokens_total{{model_name="x y"}} {self.drafted}.0\n'
            f"vllm:spec_decode_num_accepted_tokens_total {self.drafted // 2}.0\n"
        )

    def tokens(self, body: Mapping[str, Any], drafts: bool) -> list[str]:
        prompt, limit = body["prompt"], body["max_tokens"]
        if body["temperature"] == 0.0 or "seed" in body:
            found = [f" w{number}" for number in range(limit)]
            self.asked += 1
            self.last = prompt
            if (drafts and prompt in self.spoils) or (
                not drafts and prompt in self.moves and self.asked % 2
            ):
                found[3:] = [" other"] * (limit - 3)
            return found
        start, certain, ends = next(line for line in LINES if prompt.endswith(line[0]))
        words = [f" {ends[0]}", f" {ends[1]}", " never"]
        first = CHANCES[0] + (self.shift if drafts else 0.0)
        bounds = list(accumulate((first, sum(CHANCES[:2]) - first, CHANCES[2])))
        at = self.chance.random()
        drawn = next(word for word, bound in zip(words, [*bounds[:2], 1.0]) if at < bound)
        return [f" {certain}", drawn, ".", "\n", start][:limit]
