"""Let a model make up texts, so that its frequent n-grams can be counted without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile

from paradecode.completion import Completion
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM

TOGETHER = 32
QUESTION_TOKENS = 80


def own_answers(
    llm: LLM, count: int, max_tokens: int, seed: int, tick: Callable[[int, int], None]
) -> list[list[int]]:
    """Return token ids of ``count`` greedy answers to questions that the model asks itself.

    Stop tokens are included. Equal arguments give equal texts. ``tick`` gets (done, count).
    """
    texts = list[list[int]]()
    for some in own_conversations(llm, count, max_tokens, seed):
        texts += [answer for _, answer in some]
        tick(len(texts), count)
    return texts


def own_conversations(
    llm: LLM, count: int, max_tokens: int, seed: int, done: int = 0
) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Let the model make up prompts and answer them greedily, TOGETHER at a time.

    A model without a chat template writes sampled texts after an empty prompt instead.

    Args:
        count: number of texts.
        max_tokens: the most tokens of an answer.
        done: number of texts to skip at the beginning, a multiple of TOGETHER.

    Yields:
        A list with (token ids of the prompt in the chat format, token ids of the answer) for each
        text.
    """
    if llm.chat_template is None:
        head = before_the_user(llm)
        for first in range(done, count, TOGETHER):
            some = _sampled(llm, head, min(TOGETHER, count - first), max_tokens, seed + first)
            yield [(head, output.token_ids) for output in some]
        return
    for asked in own_questions(llm, count, seed, done):
        prompts = [ids for _, ids in asked]
        greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        outputs = llm.complete(prompts, greedy, decoder=None)
        yield [(prompt, output.token_ids) for prompt, output in zip(prompts, outputs)]


def own_questions(
    llm: LLM, count: int, seed: int, done: int = 0
) -> Iterator[list[tuple[str, list[int]]]]:
    """Let the model make up users' questions, TOGETHER at a time.

    Magpie (Xu et al. 2024, arXiv:2406.08464): if a conversation stops where the user would speak, a
    chat model writes what users say. These prompts are sampled at temperature 1, each with its own
    seed.

    Args:
        count: number of questions.
        done: number of questions to skip at the beginning, a multiple of TOGETHER.

    Yields:
        A list with (text, token ids in the chat format) for each question.
    """
    head = before_the_user(llm)
    for first in range(done, count, TOGETHER):
        some = min(TOGETHER, count - first)
        outputs = _sampled(llm, head, some, QUESTION_TOKENS, seed + first)
        yield [
            (each.text, llm.chat_tokens([{"role": "user", "content": each.text}]))
            for each in outputs
        ]


def _sampled(
    llm: LLM, prompt: list[int], count: int, max_tokens: int, seed: int
) -> tuple[Completion, ...]:
    params = SamplingParams(
        temperature=1.0, top_p=0.95, seed=seed % (1 << 31), n=count, max_tokens=max_tokens
    )
    made = llm.complete([prompt], params, decoder=None)[0]
    return made, *made.alternatives


def before_the_user(llm: LLM) -> list[int]:
    """Return the token ids of a conversation that stops before the user's first words."""
    if llm.chat_template is None:
        return llm.tokenizer.encode("") or [llm.config.eos_tokens[0]]
    one, other = (llm.chat_tokens([{"role": "user", "content": text}]) for text in ("A", "7"))
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other))]
