"""Does one-off work before a clock runs, so that it is not timed.

The first forward passes of a process allocate memory, start threads, load weights, and build
objects for later forwards. The first draft of a method reads tables and packs heads. The first
measurement would seem slower by this time. It is often plain decoding, and then all other methods
look faster than they are. A benchmark begins with :func:`warm_up`, or with :func:`until` for an
engine in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.methods.choice import PLAIN_DECODERS
from paradecode.methods.specs import Spec
from paradecode.prompts import encoder

TOKENS = 80
"""Number of tokens of plain greedy decoding.

The first forward passes touch the weights and the first pages of the K/V cache. More tokens also
warm up costs that appear later, and take longer.
"""
FIRST_DRAFTS = 32
"""Number of tokens that each method decodes. Its first draft may load tables or pack a head."""
PROMPT = "Repeat this list three times: copper, iron, zinc, tin, copper, iron, zinc, tin, copper."
"""A prompt that repeats itself, so that methods draft from the beginning. It is never measured."""


def warm_up(
    llm: LLM, methods: Iterable[str | Spec], sampling: SamplingParams | None = None
) -> None:
    """Decode a special prompt: 80 tokens with plain greedy decoding, then 32 with each method.

    A canvas has 32 positions in both cases, because its forward passes have many rows.

    Each method is a tenant of its own, so the measured requests do not profit from the warm-up.

    Args:
        sampling: sampling parameters of the methods; None means greedy with seed 0.

    Raises:
        Exception: the error that ended a request.
    """
    warm_up_plain(llm)
    for method in methods:
        warm_up_method(llm, method, sampling)


def warm_up_plain(llm: LLM) -> None:
    """Decode the warm-up prompt with plain decoding; raise the error that ended the request."""
    family = llm.families[0]
    tokens = TOKENS if family == "autoregressive" else FIRST_DRAFTS
    _decode(llm, PLAIN_DECODERS[family], SamplingParams(seed=0), tokens)


def warm_up_method(llm: LLM, method: str | Spec, sampling: SamplingParams | None = None) -> None:
    """Decode the warm-up prompt with one method. For arguments and errors see :func:`warm_up`."""
    _decode(llm, method, sampling or SamplingParams(seed=0), FIRST_DRAFTS)


def until(tokens: int, answer: Callable[[int, int], int]) -> None:
    """Ask for answers until they have ``tokens`` tokens together. A single answer may end early.

    Args:
        answer: (number of the turn, missing tokens) -> number of tokens of the answer; 0 ends the
            loop.
    """
    turn = 0
    while tokens > 0 and (made := answer(turn, tokens)) > 0:
        tokens, turn = tokens - made, turn + 1


def _decode(llm: LLM, method: str | Spec, sampling: SamplingParams, tokens: int) -> None:
    context = llm.config.context_length
    prompt = encoder(llm)([{"role": "user", "content": PROMPT}])[-(context // 2) :]

    def answer(turn: int, missing: int) -> int:
        params = replace(sampling, max_tokens=min(missing, context - len(prompt)), ignore_eos=True)
        made = llm.complete([prompt], params, decoder=method, salt=f"warm-up {turn} {method}")[0]
        if made.error is not None:
            raise made.error
        return made.stats.generated

    until(tokens, answer)
