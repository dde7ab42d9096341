"""Canvas methods write valid JSON, whatever the model prefers and in whatever order they decide."""

from __future__ import annotations

import json
import random
from functools import cache

import jsonschema
import numpy as np
import pytest
from constraint_schemas import PERSON, random_schema

from paradecode.constraints.regular.automaton import token_automaton
from paradecode.constraints.regular.schema import schema_expression
from paradecode.core.automaton import TokenAutomaton
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.methods.specs import methods, parse
from paradecode.testing.toy import ToyBackend, toy_config

PIECES = [bytes([code]) for code in range(32, 127)]
PIECES += [b'{"', b'":', b'","', b'"}', b"],", b"true", b"null", b"name", b"id", b'":"', b"red"]
SPELLINGS = [b"", b"", b"", b"", *PIECES, b""]
"""The bytes of each token id. Token 3 is EOS, and the last token is the mask."""

METHODS = sorted(
    name
    for name, method in methods().items()
    if method.family == "diffusion" and method.training == "none"
)
KINDS = [("full", False), ("full", True), ("block", False)]


def engine(attention: str = "full", shift: bool = False) -> Engine:
    block = 4 if attention == "block" else 0
    config = toy_config(len(SPELLINGS), 256, attention, block, shift, masked=True)
    return Engine({TARGET: ToyBackend(config, surprise=900)}, Limits(kv_tokens=8192))


@cache
def compiled(schema: str) -> TokenAutomaton:
    return token_automaton(schema_expression(json.loads(schema)), SPELLINGS)


def answer(machine: Engine, schema: dict, decoder: str, **sampling) -> str:
    automaton = compiled(json.dumps(schema))
    params = SamplingParams(**{"max_tokens": 96, **sampling})
    sequence = machine.add(
        GenerationRequest(
            np.array([40, 41, 42], np.int32), parse(decoder), params, constraint=automaton
        )
    )
    while machine.busy:
        machine.step()
        machine.check()
    if sequence.error is not None:
        raise sequence.error
    text = [token for token in sequence.output if token != 3]
    return b"".join(SPELLINGS[token] for token in text).decode()


@pytest.mark.first(6)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_writes_valid_documents(name):
    for attention, shift in KINDS:
        machine = engine(attention, shift)
        for sampling in ({}, {"temperature": 1.0, "seed": 3}):
            text = answer(machine, PERSON, name, **sampling)
            jsonschema.validate(json.loads(text), PERSON)


def test_random_schemas_in_parallel_orders():
    machine, done = engine(), 0
    for seed in range(25):
        schema = random_schema(random.Random(seed))
        for decoder in ("threshold(threshold=0.3,block_length=96)", "static(steps=12)"):
            try:
                text = answer(machine, schema, decoder, temperature=1.0, seed=seed)
            except InvalidInput:  # A keyword, or no document of so few tokens.
                continue
            jsonschema.validate(json.loads(text), schema)
            done += 1
    assert done >= 20


def test_forced_parts_are_decided_at_once():
    """A threshold commits forced tokens in parallel, because they are certain."""
    schema = {"enum": ["a long and quite inevitable answer"]}
    machine = engine()
    automaton = token_automaton(schema_expression(schema), [*SPELLINGS[:99], *[b""] * 12])
    request = GenerationRequest(
        np.array([40], np.int32), parse("threshold(block_length=36)"),
        SamplingParams(max_tokens=36), constraint=automaton,
    )  # fmt: skip
    sequence = machine.add(request)
    while machine.busy:
        machine.step()
    assert len(sequence.output) == 36
    assert sequence.forwards == 1


def test_placed_tokens_are_part_of_the_text():
    at = SPELLINGS.index(b"4")
    schema = {"type": "integer", "minimum": 100, "maximum": 999}
    text = answer(engine(), schema, f"prophet(anchor='1:{at}',answer_length=1)", max_tokens=3)
    assert text[1] == "4"
    with pytest.raises(InvalidInput, match="placed"):
        answer(engine(), schema, f"prophet(anchor='0:{SPELLINGS.index(b'0')}')", max_tokens=3)


def test_too_few_positions_are_refused():
    with pytest.raises(InvalidInput, match="max_tokens"):
        answer(engine(), PERSON, "threshold", max_tokens=5)
    with pytest.raises(InvalidInput, match="min_tokens"):
        answer(engine(), {"const": 1}, "threshold", max_tokens=20, min_tokens=10)


def test_a_grammar_of_the_other_family_is_refused(compiler):
    """A grammar for left-to-right decoding is refused on a canvas.

    Only code that calls the engine directly can give it one, because the front compiles the right
    type.
    """
    constraint = compiler.compile({"type": "regex", "value": "a"})
    config = toy_config(constraint.vocab_size, 64, masked=True)
    machine = Engine({TARGET: ToyBackend(config)}, Limits(kv_tokens=512))
    sequence = machine.add(
        GenerationRequest(
            np.array([1], np.int32),
            parse("threshold"),
            SamplingParams(max_tokens=8),
            constraint=constraint,
        )
    )
    machine.step()
    assert isinstance(sequence.error, InvalidInput)
    assert "automaton" in str(sequence.error)
