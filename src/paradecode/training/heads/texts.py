"""The target's own answers, in a file that grows by whole rounds and can be continued."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.measure.prompt_sources import read_prompts
from paradecode.measure.prompts import Conversation, encoder
from paradecode.training.decoding import Progress
from paradecode.training.heads.prompts import MeasuredPrompts, task_prompts
from paradecode.training.ngrams.own_text import TOGETHER, before_the_user, own_conversations

TEXTS = "texts.jsonl"
"""Name of the file in a folder of data."""
LONGEST_TEXT = 1 << 16
"""Most tokens of a text."""
BEGUN = 12
"""Tokens of a beginning, in place of a question, of models without a chat format."""
FEWEST = 4
"""Shorter answers teach nothing: a draft begins behind the first token."""


@dataclass(frozen=True)
class TextSource:
    """Where the texts come from.

    Attributes:
        prompts: files of prompts, each answered once.
        own: further texts, half of them tasks of the package, half questions that the model makes
            up (Magpie).
        avoid: files of prompts that are used for measuring, beside the package's own.
        max_tokens: of an answer.
        length: most tokens of a text with its prompt; longer ones are left out.
        sampled: share of the rounds whose answers are sampled; the others are greedy.
        temperature: of these.
        seed: of tasks, questions and sampling.
    """

    prompts: tuple[str, ...] = ()
    own: int = 2000
    avoid: tuple[str, ...] = ()
    max_tokens: int = 192
    length: int = 512
    sampled: float = 0.2
    temperature: float = 0.8
    seed: int = 0


@dataclass(frozen=True, eq=False)
class HeadText:
    """A prompt and its answer.

    Attributes:
        tokens: int32 [n].
        start: where the answer begins.
        greedy: whether each token of the answer was the likeliest.
    """

    tokens: NDArray[np.int32]
    start: int
    greedy: bool


@dataclass
class Rounds:
    """Rounds of TOGETHER texts: those of files and tasks, and between them the model's own."""

    llm: LLM
    source: TextSource
    refused: int = 0
    measured: MeasuredPrompts = field(init=False)
    asked: list[Conversation] = field(init=False)
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        source = self.source
        if "autoregressive" not in self.llm.families:
            raise InvalidInput("model", self.llm.model, "heads are for autoregressive models")
        self.measured = MeasuredPrompts(source.avoid)
        asked = [prompt for name in source.prompts for prompt in read_prompts(name)]
        random = np.random.default_rng(source.seed)
        asked = [asked[i] for i in random.permutation(len(asked))]
        if self.llm.chat_template is not None:
            asked += task_prompts(source.own // 2, source.seed)
        fit = [each for each in asked if not self.measured.has((*each.turns, each.system))]
        self.refused, self.asked = len(asked) - len(fit), fit
        own = source.own - (source.own // 2 if self.llm.chat_template is not None else 0)
        self._of_files, self._own = -(-len(fit) // TOGETHER), -(-own // TOGETHER)
        self.rounds = self._of_files + self._own
        if not self.rounds:
            raise InvalidInput("--prompts", f"{self.refused} refused", "give others, or more --own")

    def make(self, number: int) -> tuple[list[dict[str, Any]], int]:
        """The texts of a round, and how many questions of it were refused."""
        # Both kinds are spread evenly over all rounds.
        before, behind = (n * self._own // self.rounds for n in (number, number + 1))
        if behind > before:
            return self._made_up(before)
        return self._answers(number - before), 0

    def _answers(self, number: int) -> list[dict[str, Any]]:
        source, llm = self.source, self.llm
        encode = encoder(llm)
        some = self.asked[number * TOGETHER : (number + 1) * TOGETHER]
        talks: list[list[dict[str, str]]] = [
            [{"role": "system", "content": each.system}] if each.system else [] for each in some
        ]
        often = int((number + 1) * source.sampled) - int(number * source.sampled)
        params = SamplingParams(
            temperature=source.temperature if often else 0.0, seed=source.seed + number,
            max_tokens=source.max_tokens,
        )  # fmt: skip
        texts = []
        for turn in range(max(len(each.turns) for each in some)):
            going = [i for i, each in enumerate(some) if turn < len(each.turns)]
            for i in going:
                talks[i].append({"role": "user", "content": some[i].turns[turn]})
            prompts = {i: encode(talks[i]) for i in going}
            going = [i for i in going if len(prompts[i]) + FEWEST < source.length]
            answers = llm.generate([prompts[i] for i in going], params, decoder=None)
            for i, answer in zip(going, answers):
                talks[i].append({"role": "assistant", "content": answer.text})
                texts.append(_entry(prompts[i], answer.token_ids, not often))
            some = [each if i in going else Conversation("", "", (), 0)
                    for i, each in enumerate(some)]  # fmt: skip
        return texts

    def _made_up(self, number: int) -> tuple[list[dict[str, Any]], int]:
        source, decode = self.source, self.llm.tokenizer.decode
        if self.llm.chat_template is None:
            return self._continued(number), 0
        some = next(own_conversations(
            self.llm, (number + 1) * TOGETHER, source.max_tokens, source.seed, number * TOGETHER
        ))  # fmt: skip
        fit = [(p, a) for p, a in some if not self.measured.has([decode(p)])]
        return [_entry(p, a, True) for p, a in fit], len(some) - len(fit)

    def _continued(self, number: int) -> list[dict[str, Any]]:
        """Of a model without a chat format: beginnings that it samples, and how it goes on."""
        start, llm = before_the_user(self.llm), self.llm
        begun = llm.generate([start], decoder=None, n=TOGETHER, temperature=1.0, top_p=0.95,
                             seed=self.source.seed + number, max_tokens=BEGUN)[0]  # fmt: skip
        prompts = [[*start, *each.token_ids] for each in (begun, *begun.alternatives)]
        greedy = SamplingParams(temperature=0.0, max_tokens=self.source.max_tokens)
        answers = llm.generate(prompts, greedy, decoder=None)
        return [_entry(p, a.token_ids, True) for p, a in zip(prompts, answers)]


def _entry(prompt: Sequence[int], answer: Sequence[int], greedy: bool) -> dict[str, Any]:
    return {"prompt": list(prompt), "answer": list(answer), "greedy": greedy}


def make_texts(path: Path, rounds: Rounds, tick: Progress) -> int:
    """Write the texts, a line a round; returns how many prompts were refused.

    What is there is kept; a line that was cut off is made again. Equal arguments give equal files.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(lines):
        path.write_bytes(b"".join(whole))
    with path.open("a", encoding="utf-8") as file:
        for number in range(len(whole), rounds.rounds):
            tick(number, rounds.rounds)
            texts, refused = rounds.make(number)
            file.write(json.dumps({"texts": texts, "refused": refused}) + "\n")
            file.flush()
    tick(rounds.rounds, rounds.rounds)
    return rounds.refused + sum(entry["refused"] for entry in _lines(path))


def read_texts(path: Path, length: int) -> list[HeadText]:
    """The texts of a file that fit, one of each prompt; raises InvalidInput for a damaged file."""
    found: dict[tuple[int, ...], HeadText] = {}
    try:
        for entry in _lines(path):
            for text in entry["texts"]:
                prompt, answer = text["prompt"], text["answer"]
                tokens = np.array([*prompt, *answer][:length], np.int32)
                if prompt and len(tokens) - len(prompt) >= FEWEST:
                    made = HeadText(tokens, len(prompt), bool(text["greedy"]))
                    found.setdefault(tuple(prompt), made)
    except FileNotFoundError:
        raise InvalidInput("texts", str(path), "name a folder that `train head` filled") from None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidInput("texts", str(path), f"remove the damaged file ({error})") from None
    return list(found.values())


def _lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)
