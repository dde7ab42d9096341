"""Texts that a model makes up, so that its frequent n-grams can be counted without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile

from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM

TOGETHER = 32
QUESTION_TOKENS = 80


def own_answers(
    llm: LLM, count: int, max_tokens: int, seed: int, tick: Callable[[int, int], None]
) -> list[list[int]]:
    """Token ids of ``count`` greedy answers to questions that the model asks itself.

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
    """Prompts and greedy answers that the model makes up, TOGETHER at a time.

    Magpie (Xu et al. 2024, arXiv:2406.08464): if a conversation stops where the user would speak, a
    chat model writes what users say. These prompts are sampled at temperature 1, each with its own
    seed. A model without a chat template writes the texts themselves, after an empty prompt.

    Args:
        done: number of texts to skip at the beginning, a multiple of TOGETHER.

    Yields:
        (token ids of the prompt in the chat format, token ids of the answer) for each text.
    """
    head = before_the_user(llm)
    for first in range(done, count, TOGETHER):
        some = min(TOGETHER, count - first)
        sampled = SamplingParams(
            temperature=1.0, top_p=0.95, seed=(seed + first) % (1 << 31), n=some,
            max_tokens=QUESTION_TOKENS if llm.chat_template else max_tokens,
        )  # fmt: skip
        asked = llm.generate([head], sampled, decoder=None)[0]
        outputs, prompts = (asked, *asked.alternatives), [head] * some
        if llm.chat_template is not None:
            prompts = [llm.chat_tokens([{"role": "user", "content": o.text}]) for o in outputs]
            greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens)
            outputs = tuple(llm.generate(prompts, greedy, decoder=None))
        yield [(prompt, o.token_ids) for prompt, o in zip(prompts, outputs)]


def before_the_user(llm: LLM) -> list[int]:
    """Token ids of a conversation up to the place of the user's first words."""
    if llm.chat_template is None:
        return llm.tokenizer.encode("") or [llm.config.eos_tokens[0]]
    one, other = (llm.chat_tokens([{"role": "user", "content": text}]) for text in ("A", "7"))
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other))]
