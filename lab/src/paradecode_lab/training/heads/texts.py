"""Write the target's own answers to a file, which grows by whole rounds and can be continued.

The target's states while it wrote may be kept, with a file for each round, so that it does not have
to read the texts again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.prompts import encoder
from paradecode_lab.measure.prompt_sources import read_prompts
from paradecode_lab.measure.prompts import Conversation
from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.heads.answers import Answer, Writer
from paradecode_lab.training.heads.prompts import MeasuredPrompts, task_prompts
from paradecode_lab.training.ngrams.own_text import before_the_user

TEXTS = "texts.jsonl"
"""Name of the file of texts in a folder of training data."""
LONGEST_TEXT = 1 << 16
"""The most tokens of a text."""
BEGUN = 12
"""Number of tokens of a beginning.

A model without a chat format continues a beginning instead of answering a question.
"""
FEWEST = 4
"""The fewest tokens of an answer that is kept. A draft begins after its first token."""


@dataclass(frozen=True)
class TextSource:
    """Settings of the texts: where they come from and how they are sampled.

    Attributes:
        prompts: files of prompts, each answered once.
        own: number of further texts. Half of them answer tasks of the package, half answer
            questions that the model makes up (Magpie).
        avoid: files of prompts that are used for measuring, beside the package's own.
        max_tokens: the most tokens of an answer.
        length: the most tokens of a text with its prompt. Longer texts are cut, and texts whose
            prompt leaves no room for an answer are left out.
        sampled: share of the rounds whose answers are sampled; the others are greedy.
        temperature: temperature of sampled answers.
        seed: seed of tasks, questions and sampling.
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
        tokens: int32 [n], prompt and answer.
        start: index of the answer's first token.
        greedy: whether each token of the answer was the most likely one.
        round: index of the round that made the text.
        row: index of the text's first row among the states that were kept of its round.
    """

    tokens: NDArray[np.int32]
    start: int
    greedy: bool
    round: int = 0
    row: int = 0


@dataclass(frozen=True, eq=False)
class Round:
    """The texts that one round wrote.

    Attributes:
        texts: entries for the file.
        states: states of each text; see :class:`Answer`.
        refused: number of questions that resemble a measured prompt.
    """

    texts: list[dict[str, Any]]
    states: list[NDArray[np.float16]]
    refused: int = 0


@dataclass
class Rounds:
    """Makes rounds of texts, each with as many texts as the writer makes together.

    Rounds that answer prompts of files and tasks are mixed with rounds that answer the model's own
    questions.

    Raises:
        InvalidInput: the model is not autoregressive, or no prompt is left.
    """

    writer: Writer
    source: TextSource
    refused: int = 0
    llm: LLM = field(init=False)
    measured: MeasuredPrompts = field(init=False)
    asked: list[Conversation] = field(init=False)
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        source, self.llm = self.source, self.writer.llm
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
        together = self.writer.together
        own = source.own - (source.own // 2 if self.llm.chat_template is not None else 0)
        self._of_files, self._own = -(-len(fit) // together), -(-own // together)
        self.rounds = self._of_files + self._own
        if not self.rounds:
            raise InvalidInput("--prompts", f"{self.refused} refused", "give others, or more --own")

    def make(self, number: int, layers: tuple[int, ...] = ()) -> Round:
        """Write a round of texts, and record the outputs of these layers."""
        # The model's own questions are spread evenly over all rounds.
        before, behind = (n * self._own // self.rounds for n in (number, number + 1))
        if behind > before:
            return self._made_up(before, layers)
        return self._answers(number - before, layers)

    def _answers(self, number: int, layers: tuple[int, ...]) -> Round:
        source, llm = self.source, self.llm
        encode = encoder(llm)
        together = self.writer.together
        some = self.asked[number * together : (number + 1) * together]
        talks: list[list[dict[str, str]]] = [
            [{"role": "system", "content": each.system}] if each.system else [] for each in some
        ]
        often = int((number + 1) * source.sampled) - int(number * source.sampled)
        params = SamplingParams(
            temperature=source.temperature if often else 0.0, seed=source.seed + number,
            max_tokens=source.max_tokens,
        )  # fmt: skip
        pairs: list[tuple[list[int], Answer]] = []
        for turn in range(max(len(each.turns) for each in some)):
            going = [i for i, each in enumerate(some) if turn < len(each.turns)]
            for i in going:
                talks[i].append({"role": "user", "content": some[i].turns[turn]})
            prompts = {i: encode(talks[i]) for i in going}
            going = [i for i in going if len(prompts[i]) + FEWEST < source.length]
            answers = self.writer.answers([prompts[i] for i in going], params, layers)
            for i, answer in zip(going, answers):
                talks[i].append({"role": "assistant", "content": answer.text})
                pairs.append((prompts[i], answer))
            some = [each if i in going else Conversation("", "", (), 0)
                    for i, each in enumerate(some)]  # fmt: skip
        return _round(pairs, not often)

    def _made_up(self, number: int, layers: tuple[int, ...]) -> Round:
        source = self.source
        if self.llm.chat_template is None:
            asked = self._begun(number)
        else:
            asked = self.writer.questions(number, source.seed)
        # Only the user's words are compared: with the chat format around them, a short text would
        # not be recognised as short.
        fit = [prompt for text, prompt in asked if not self.measured.has([text])]
        greedy = SamplingParams(temperature=0.0, max_tokens=source.max_tokens)
        answers = self.writer.answers(fit, greedy, layers)
        return _round(list(zip(fit, answers)), True, len(asked) - len(fit))

    def _begun(self, number: int) -> list[tuple[str, list[int]]]:
        """Let a model without a chat format sample beginnings.

        Returns:
            For each beginning its text, and its token ids as a prompt.
        """
        start = before_the_user(self.llm)
        params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=BEGUN,
                                seed=self.source.seed + number)  # fmt: skip
        begun = self.writer.sampled(start, params)
        return [(each.text, [*start, *each.tokens]) for each in begun]


def _round(pairs: list[tuple[list[int], Answer]], greedy: bool, refused: int = 0) -> Round:
    texts = [{"prompt": p, "answer": a.tokens, "greedy": greedy} for p, a in pairs]
    return Round(texts, [a.states for _, a in pairs], refused)


def kept_states(folder: Path, layers: Sequence[int]) -> Path:
    """Return the folder of the states of these layers that were kept when texts were written."""
    return folder / f"written-{'-'.join(map(str, layers))}"


def make_texts(
    path: Path, rounds: Rounds, tick: Progress, layers: tuple[int, ...] = (), most_bytes: float = 0
) -> int:
    """Write the missing rounds of texts, one line each; return the number of refused prompts.

    Existing lines are kept, and an incomplete last line is made again. Equal arguments give equal
    files.

    Args:
        path: the file of texts.
        rounds: makes the rounds.
        tick: called before each round.
        layers: layers whose outputs are kept in :func:`kept_states`, beside the file.
        most_bytes: the most bytes of these states. After that, the states of later rounds are not
            kept.

    Raises:
        InvalidInput: a line of the file is damaged.
    """
    begun = path.read_bytes() if path.exists() else b""
    whole = begun[: begun.rfind(b"\n") + 1]
    if whole != begun:
        path.write_bytes(whole)
    made_before = [*_parsed(path, whole.split(b"\n")[:-1])]  # Refuse damage before hours of work.
    refused = rounds.refused + sum(entry["refused"] for entry in made_before)
    kept = kept_states(path.parent, layers)
    size = sum(file.stat().st_size for file in kept.glob("*.npy"))
    with path.open("a", encoding="utf-8") as file, ThreadPoolExecutor(1) as saver:

        def put(number: int, made: Round, room: bool) -> None:
            """Write a round to disk, its states first."""
            if room and made.states:
                _save(kept / f"{number:06}.npy", np.concatenate(made.states))
            file.write(json.dumps({"texts": made.texts, "refused": made.refused}) + "\n")
            file.flush()

        # One round is written to disk while the next round is made.
        written: Future[None] | None = None
        for number in range(len(made_before), rounds.rounds):
            tick(number, rounds.rounds)
            room = bool(layers) and size < most_bytes
            made = rounds.make(number, layers if room else ())
            if written is not None:
                written.result()
            written = saver.submit(put, number, made, room)
            size += room * sum(each.nbytes for each in made.states)
            refused += made.refused
        if written is not None:
            written.result()
    tick(rounds.rounds, rounds.rounds)
    return refused


def _save(path: Path, states: NDArray[np.float16]) -> None:
    """Write the states completely, or not at all."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, states)
    os.replace(part, path)


def read_texts(path: Path, length: int) -> list[HeadText]:
    """Return the texts of a file, one for each prompt; raise InvalidInput for a damaged file.

    Texts are cut to ``length`` tokens, and those with a too short answer are left out.
    """
    found: dict[tuple[int, ...], HeadText] = {}
    try:
        with path.open("rb") as file:
            for number, entry in enumerate(_parsed(path, file)):
                row = 0
                for text in entry["texts"]:
                    prompt, answer = text["prompt"], text["answer"]
                    tokens = np.array([*prompt, *answer], np.int32)
                    if prompt and min(len(tokens), length) - len(prompt) >= FEWEST:
                        made = HeadText(tokens[:length], len(prompt), text["greedy"], number, row)
                        found.setdefault(tuple(prompt), made)
                    row += len(tokens) - 1
    except FileNotFoundError:
        raise InvalidInput("texts", str(path), "name a folder that `train head` filled") from None
    return list(found.values())


def _parsed(path: Path, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the rounds of a file; raise InvalidInput that names the first damaged line."""
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            checked = [_is_text(text) for text in entry["texts"]]
            if not all(checked) or type(entry["refused"]) is not int:
                raise ValueError("no round")
        except (ValueError, KeyError, TypeError, RecursionError):
            fix = "it is damaged: delete this line and all that follow; the same `train head` makes"
            raise InvalidInput(
                f"{path.name} line {number}", str(path), f"{fix} them again"
            ) from None
        yield entry


def _is_text(text: Any) -> bool:
    """Decide whether an entry of a round is a valid text.

    Some invalid entries raise KeyError or TypeError instead.
    """
    ids = text["prompt"], text["answer"]
    known = all(type(token) is int and 0 <= token < 1 << 31 for some in ids for token in some)
    return known and type(text["greedy"]) is bool
