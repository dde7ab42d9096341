"""Record texts for R2-dLLM: the model's answer to each prompt that took the fewest forwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode_lab.training.decoding import Progress, decode_all
from paradecode_lab.training.unmasking.trajectories import MASKED, OUTSIDE, PROMPT, Trajectories
from paradecode_lab.training.unmasking.workload import CanvasWorkload

TEMPERATURE = 0.7
"""Temperature of all draws except the first one, which is greedy."""


def record_short_decodings(
    llm: LLM, workload: CanvasWorkload, block: int, draws: int, progress: Progress
) -> Trajectories:
    """Decode each prompt ``draws`` times with ``r2``, and keep the answer with the fewest forwards.

    Wrong answers to the package's tasks are dropped first, so a prompt may get no text. Answers to
    a file of prompts cannot be checked. If several answers took equally few forwards, the first is
    kept.

    Raises:
        InvalidInput: if no text is left.
    """
    prompts, known = workload.encoded(llm), workload.drawn()
    method = parse(f"r2(block_length={block})")
    best: dict[int, LiveSequence] = {}
    for draw in range(draws):
        params = workload.params()
        if draw:
            params = replace(params, temperature=TEMPERATURE, seed=workload.seed + draw)

        def tell(done: int, total: int, before: int = draw) -> None:
            progress(before * total + done, draws * total)

        made = decode_all(llm, prompts, lambda number: method(), [params] * len(prompts), tell)
        for number, sequence in enumerate(made):
            if known:
                task, instance = known[number]
                text = llm.tokenizer.decode(sequence.output)
                if sequence.finish_reason != "stop" or not task.check(instance, text):
                    continue
            if number not in best or sequence.forwards < best[number].forwards:
                best[number] = sequence
    if not best:
        fix = "the model answers no prompt rightly: train it first, or give --prompts"
        raise InvalidInput("--model", llm.model, fix)
    canvases = [_canvas(llm, best[number], len(prompts[number])) for number in sorted(best)]
    width = max(len(tokens) for tokens, _ in canvases)
    return Trajectories(
        np.stack([_padded(tokens, width, 0) for tokens, _ in canvases]),
        np.stack([_padded(step, width, OUTSIDE) for _, step in canvases]),
    )


def _canvas(
    llm: LLM, sequence: LiveSequence, start: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the tokens [N] of a finished request, and the forwards that decided them.

    The forwards are indices from 0, float32 [N], or MASKED or PROMPT.
    """
    steps = [step.canvas for step in sequence.trace if step.canvas is not None]
    end = start + steps[0].length
    tokens = np.full(end, float(llm.config.mask_token or 0), np.float32)
    when = np.where(np.arange(end) < start, PROMPT, MASKED).astype(np.float32)
    tokens[:start] = sequence.tokens[:start]
    for number, step in enumerate(steps):
        places = start + np.array(step.offsets, np.int64)
        tokens[places], when[places] = step.tokens, number
    return tokens, when


def _padded(values: NDArray[np.float32], width: int, filler: int) -> NDArray[np.float32]:
    return np.pad(values, (0, width - len(values)), constant_values=filler)
