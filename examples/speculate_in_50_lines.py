"""Speculative decoding with only a backend: draft, verify in one forward, sample exactly.

python examples/speculate_in_50_lines.py "Say this twice: red green blue." [TEMPERATURE]
"""

import sys

import numpy as np

from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE, Span
from paradecode.core.logits import Warp
from paradecode.models.catalogue import open_model


def draft(tokens, most=8):
    """Prompt lookup: return the tokens that followed an earlier copy of the last two tokens."""
    for start in range(len(tokens) - 3, -1, -1):
        if tokens[start : start + 2] == tokens[-2:]:
            return tokens[start + 2 : start + 2 + most]
    return []


def decode(backend, tokens, end, stops, warp, choose):
    """Append to ``tokens`` until it has ``end`` tokens; return the number of forwards."""
    pages, done, forwards = np.arange(-(-end // PAGE), dtype=np.int32), 0, 0
    backend.reserve(len(pages))
    while len(tokens) < end and tokens[-1] not in stops:
        guess = draft(tokens)[: end - len(tokens) - 1]
        rows = np.array(tokens[done:] + guess, np.int32)
        slots = np.arange(done, done + len(rows), dtype=np.int32)
        asked = np.arange(len(rows) - len(guess) - 1, len(rows), dtype=np.int32)
        (result,) = backend.forward([Span(pages, rows, slots, slots, done, asked)])
        forwards += 1
        for p, token in zip(result.logits.probabilities(warp), [*guess, None]):
            accepted = token is not None and choose(2, p=(1 - p[token], p[token]))
            if not accepted:  # After a rejection, sample from the rest of p.
                p[slice(0) if token is None else token] = 0
                token = int(choose(len(p), p=p / p.sum()))
            tokens.append(token)
            if not accepted or token in stops:
                break
        done = len(tokens) - 1  # The last token has no keys and values; rejected rows give theirs.
    return forwards


if __name__ == "__main__":
    model, temperature = open_model(), float((*sys.argv, "0")[2])
    text = model.chat_template.render([{"role": "user", "content": sys.argv[1]}])
    tokens, ends = model.tokenizer.encode(text), model.config.eos_tokens
    backend, first = open_backend("auto", model.config, model.weights), len(tokens)
    choose = np.random.default_rng(0).choice
    forwards = decode(backend, tokens, first + 64, ends, Warp(temperature), choose)
    print(model.tokenizer.decode(tokens[first:]))
    print(f"[{len(tokens) - first} tokens, {forwards} forwards]")
