"""Handmade traces: completions of both families over a vocabulary of words."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from paradecode.completion import Completion, SearchedBranch
from paradecode.core import trace as core
from paradecode.core.trace import Stats, Step, TokenLogprob
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.trace import Trace, trace_record

EOS = "<|end|>"
BLOCK = 16


class Words:
    """A tokenizer whose vocabulary grows with the words that it meets.

    Id 0 is the control token.
    """

    byte_level = True

    def __init__(self) -> None:
        self.words = [EOS]

    def id(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def ids(self, text: str) -> list[int]:
        return [self.id(word) for word in re.findall(r" ?[^\s]+|\s+", text)]

    def token(self, index: int) -> str:
        return self.words[index]

    def is_control(self, index: int) -> bool:
        return index == 0

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        return "".join(self.words[i] for i in ids if i or not skip_special)

    def stream(self, skip_special: bool = True) -> WordStream:
        return WordStream(self, skip_special)


class WordStream:
    def __init__(self, words: Words, skip_special: bool) -> None:
        self.words, self.skip_special = words, skip_special

    def push(self, token: int) -> str:
        return self.words.decode([token], self.skip_special)

    def flush(self) -> str:
        return ""


def completion(words: Words, steps: list[Step], output: list[int], prompt: str) -> Completion:
    seconds = sum(step.seconds for step in steps)
    stats = Stats(
        forwards=steps[-1].forward if steps else 0, generated=len(output),
        drafts=sum(step.drafted > 0 for step in steps), drafted=sum(step.drafted for step in steps),
        accepted=sum(step.accepted for step in steps), prompt_tokens=len(words.ids(prompt)),
        prefill_seconds=steps[0].seconds if steps else 0.0,
        decode_seconds=seconds - steps[0].seconds if steps else 0.0,
        first_tokens=len(steps[0].tokens) if steps else 0, target_seconds=0.8 * seconds,
        decoder_seconds=0.1 * seconds,
    )  # fmt: skip
    text = words.decode(output)
    return Completion(text, output, "stop", stats, steps, words.ids(prompt))


def drafted(words: Words | None = None) -> Trace:
    """Return a trace of forwards with different drafts.

    There is no draft, a chain that is half accepted, a tree, and a tree that is rejected as a
    whole.
    """
    words = words or Words()

    def of(*texts: str) -> tuple[int, ...]:
        return tuple(words.id(text) for text in texts)

    chain = TokenTree.chain(of(" cat", " sat", " on", " it"), [0.9, 0.8, 0.5, 0.5])
    tree = TokenTree(
        np.array(of(" the", " a", " mat", " floor", " rug"), np.int32),
        np.array([-1, -1, 0, 0, 1], np.int32), np.array([0.7, 0.2, 0.6, 0.3, 0.4], np.float32),
    )  # fmt: skip
    wrong = TokenTree.chain(of(" and", " then"), [0.3, 0.3])
    steps = [
        Step(1, of("The"), 0, 0, EMPTY, 0.030),
        Step(2, of(" cat", " sat", " upon"), 2, 4, chain, 0.005),
        Step(3, of(" the", " mat", "."), 2, 5, tree, 0.006), Step(5, of("\n"), 0, 4, wrong, 0.009),
        Step(6, (0,), 0, 0, EMPTY, 0.004),
    ]  # fmt: skip
    output = [token for step in steps for token in step.tokens]
    made = completion(words, steps, output, "Where was the cat?")
    logprobs = [TokenLogprob(t, -0.1, ((t, -0.1), (words.id(" dog"), -2.5))) for t in output]
    made = Completion(**{**vars(made), "logprobs": logprobs})
    return trace_record(made, cast(Any, words), "sample-model", "sample(k=4)", "native")


def searched() -> Trace:
    """Return the drafted sample as a search: two branches, their continuations, one cancelled."""
    ways = [
        SearchedBranch(None, "The cat sat upon", 4, "stop", 0.75, True),
        SearchedBranch(None, "<b>It</b> was\u202e nowhere, so all", 9, "length", 0.5, False),
        SearchedBranch(0, " the mat.", 3, "stop", 0.875, True),
        SearchedBranch(0, " a rug", 2, "stop", -12.25, False),
        SearchedBranch(1, "", 0, "cancelled", None, False),
    ]
    return {**drafted(), "branches": [vars(way) for way in ways]}


def denoised() -> Trace:
    """Return a trace of three blocks of 16 positions, with one preset token and no times.

    In each block a mistake is masked again.
    """
    words, chance = Words(), random.Random(5)
    final = words.ids(
        "Tom has 3 bags with 4 apples in each of them.\n3 x 4 = 12, so he has 12 apples."
        "\nHe eats 2 of them: 12 - 2 = 10.\nThe answer is 10."
    )
    preset, ends = final.index(words.id(" answer")), len(final) + 1
    final += [0] * (-len(final) % BLOCK)
    guess = words.ids(" apples 11 bags the of")
    steps: list[Step] = []
    masked = [place for place in range(len(final)) if place != preset]
    for start in range(0, len(final), BLOCK):
        block = [place for place in masked if start <= place < start + BLOCK]
        slip, fixed = block[5], False
        while block:
            revoked = (slip,) if not fixed and slip not in block and len(block) < 8 else ()
            fixed = fixed or bool(revoked)
            chosen = sorted(chance.sample(block, min(len(block), chance.randint(1, 5))))
            if not fixed and slip not in chosen and slip in block:
                chosen = sorted([*chosen, slip])
            block = sorted({*block, *revoked} - set(chosen))
            commit = core.CanvasStep(
                offsets=tuple(chosen),
                tokens=tuple(
                    guess[1] if place == slip and not fixed else final[place] for place in chosen
                ),
                confidences=tuple(round(chance.uniform(0.8, 1), 3) for _ in chosen),
                revoked=revoked,
                window=(start, start + BLOCK),
                length=len(final),
                proposed=tuple(
                    (
                        place, final[place] if chance.random() < 0.6 else chance.choice(guess),
                        round(chance.uniform(0.1, 0.8), 3),
                    )
                    for place in block
                ),
            )  # fmt: skip
            steps.append(Step(len(steps) + 1, (), 0, 0, EMPTY, 0.0, commit))
    made = completion(words, steps, final[:ends], "Tom has 3 bags ...")
    return trace_record(made, cast(Any, words), "made by hand", "threshold", "no")


HOSTILE = (
    "<script>document.title='owned'</script>", "</script><script>document.title='owned'</script>",
    "<!--", "-->", "<img src=x onerror=alert(1)>", "]]>", "&lt;b&gt;", "{{trace}}", "\"'`\\",
    "\u202eright to left", "\u2066isolated\u2069", "\u2028", "\u2029", "\x00", "\ud800", "\r\n",
    "\x1b[31mred\x1b]0;title\x07", "\t tab", "\u200b", "x" * 3000, "漢字" * 30, " مرحبا",
    "👩\u200d👧",
)  # fmt: skip


def hostile(tokens: int = 4000) -> Trace:
    """Return a long output that tries to break out of the page, with drafts of such tokens."""
    words, chance = Words(), random.Random(1)
    vocabulary = [words.id(word) for word in HOSTILE]
    output = [vocabulary[place % len(vocabulary)] for place in range(tokens)]
    steps, done = [], 0
    while done < tokens:
        committed = tuple(output[done : done + chance.randint(1, 3)])
        accepted = len(committed) - 1
        nodes = [*committed[:accepted], *chance.choices(vocabulary, k=12)]
        parents = [
            *range(-1, accepted - 1), *(chance.randint(-1, accepted + i - 1) for i in range(12)),
        ]  # fmt: skip
        estimates = [chance.random() for _ in nodes]
        tree = TokenTree(
            np.array(nodes, np.int32), np.array(parents, np.int32), np.array(estimates, np.float32)
        )
        steps.append(Step(len(steps) + 1, committed, accepted, len(nodes), tree, 0.004))
        done += len(committed)
    made = completion(words, steps, output, "".join(HOSTILE[:5]))
    return trace_record(
        made, cast(Any, words), "<b>model</b>", "</title><script>document.title='owned'", "native"
    )
