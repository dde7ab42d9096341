"""One-off costs, paid before a clock runs.

The first forwards of a process allocate memory, start threads, fault weights in, and build what
later forwards use; the first draft of a method reads tables and packs heads. What is timed first
pays for it, and that is plain decoding more often than not: all other methods then look faster than
they are. A benchmark begins with :func:`warm_up`, or with :func:`until` where an engine can only be
asked.
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
"""Tokens of plain greedy decoding. First forwards touch the weights and the first pages of the
cache. More tokens warm up later costs, too, and take longer."""
FIRST_DRAFTS = 32
"""Tokens of each method. A method's first draft may load tables or pack a head."""
PROMPT = "Repeat this list three times: copper, iron, zinc, tin, copper, iron, zinc, tin, copper."
"""It copies, so that methods draft from the beginning; nobody measures it."""


def warm_up(
    llm: LLM, methods: Iterable[str | Spec], sampling: SamplingParams | None = None
) -> None:
    """Decode a prompt of its own: 80 tokens plainly and greedily, then 32 with each method.

    A canvas has 32 positions in either case: its forwards have many rows.

    Each method is a tenant of its own, so that nothing learned here helps what is measured.

    Args:
        sampling: of the methods; greedy with seed 0 if None.

    Raises:
        Exception: what ended a request.
    """
    warm_up_plain(llm)
    for method in methods:
        warm_up_method(llm, method, sampling)


def warm_up_plain(llm: LLM) -> None:
    """Pay for what the model itself needs once; raises what ended a request."""
    family = llm.families[0]
    tokens = TOKENS if family == "autoregressive" else FIRST_DRAFTS
    _decode(llm, PLAIN_DECODERS[family], SamplingParams(seed=0), tokens)


def warm_up_method(llm: LLM, method: str | Spec, sampling: SamplingParams | None = None) -> None:
    """Pay for what a method needs once; arguments and errors as of :func:`warm_up`."""
    _decode(llm, method, sampling or SamplingParams(seed=0), FIRST_DRAFTS)


def until(tokens: int, answer: Callable[[int, int], int]) -> None:
    """Ask until so many tokens were answered: one answer may end early.

    Args:
        answer: (number of the turn, tokens that are missing) -> tokens that it made; none end this.
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
