"""Lexical units keep the same tokens as a plain implementation without engine and cache."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from toys import MASK, PARAMS, TEXTS, outputs, requests, silent, toy

from by_hand import softmax
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode.testing.conformance import cases
from paradecode.testing.machines import CONTEXT
from paradecode.testing.reference import fresh_logits

EOS = 3


def by_the_book(model, prompt, params, count, least):
    """Return the tokens and the number of forwards; each row is computed from its whole text."""
    sampler = Sampler(params, np.array(prompt, np.int32), [EOS])
    text, forwards = [], 0
    while len(text) < params.max_tokens and EOS not in text:
        forwards += 1
        unit = []
        for masks in range(count + 1):
            if len(text) + len(unit) == params.max_tokens or EOS in unit:
                break
            row = fresh_logits(model, [*prompt, *text, *[MASK] * masks]).values[0]
            allowed = np.where(np.arange(len(row)) == MASK, -np.inf, row)
            token = sampler.token(ArrayLogits(allowed[None]), 0, unit)
            if masks and (softmax(row)[token] < least or token == unit[-1]):
                break
            unit.append(token)
        sampler.advance(unit)
        text += unit
    return text, forwards


@pytest.mark.parametrize(("count", "least"), [(4, 0.0), (3, 0.048), (5, 0.4), (1, 0.9)])
def test_the_plain_reading_gives_the_same_tokens_and_forwards(count, least):
    model = toy()[TARGET]
    model.reserve(CONTEXT)
    wanted = [by_the_book(model, text, params, count, least) for text in TEXTS for params in PARAMS]
    spec = f"lud(placeholders={count},threshold={least})"
    for batch in (1, 18):
        made = outputs(spec, toy, batch, requests())
        assert [(list(seq.output), seq.stats.forwards) for seq in made] == wanted
    tokens, forwards = sum(len(text) for text, _ in wanted), sum(n for _, n in wanted)
    assert forwards < tokens


@pytest.mark.parametrize("spec", ["lud(threshold=2)", "lud(placeholders=0)"])
def test_without_sure_tokens_it_is_plain_decoding(spec):
    only = ("batch-of-16", "stop-tokens", "context-end", "constrained", "chunks-of-3")
    exact = partial(cases, guarantee="exact", kinds=("toy",), only=only)
    for case in exact(lambda: parse(spec)(), silent):
        case.run()


@pytest.mark.parametrize(
    "case",
    cases(
        "lud(threshold=0.1)", toy, kinds=("toy",),
        only=("mixed-methods", "prefix-cache", "cancelled-neighbour", "stop-strings",
              "end-of-text", "context-end", "constrained", "log-probabilities", "max-tokens"),
    ),
    ids=str,
)  # fmt: skip
def test_what_every_method_promises(case):
    case.run()


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_unit_ends_where_no_token_may_follow(allowed):
    """A row without an allowed token ends the unit; if the row is the first one, it is an error."""

    def token(logits, row, path):
        if row == allowed:
            raise InvalidInput("constraint", "regex", "loosen it")
        return 5 + row

    sampler = Sampler(SamplingParams(temperature=1.0, seed=1), np.array([5], np.int32), [EOS])
    sampler.token = token
    method, logits = parse("lud(threshold=0.0)")(), ArrayLogits(np.zeros((4, 29), np.float32))
    if allowed == 0:
        with pytest.raises(InvalidInput, match="constraint"):
            method.unit(SimpleNamespace(sampler=sampler), logits, MASK)
    else:
        made = method.unit(SimpleNamespace(sampler=sampler), logits, MASK)
        assert list(made.tokens) == [5 + row for row in range(allowed)]


def test_a_model_without_a_placeholder_is_refused():
    model = LLM("paradecode/tiny-autoregressive", threads=1)
    with model as llm, pytest.raises(InvalidInput, match="train lud"):
        llm.complete("copy: Ana", decoder="lud", max_tokens=4)
