"""Token automata of expressions and schemas agree with `re`, `jsonschema` and llguidance."""

from __future__ import annotations

import json
import random
import re
from itertools import product

import jsonschema
import numpy as np
import pytest
from constraint_schemas import PERSON, TREE, random_schema
from hypothesis import given
from hypothesis import strategies as st

from paradecode.constraints.regular.automaton import byte_automaton, token_automaton
from paradecode.constraints.regular.expressions import between, parse
from paradecode.constraints.regular.schema import schema_expression
from paradecode.core.automaton import TokenAutomaton
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.methods.specs import parse as parse_spec
from paradecode.testing.toy import ToyBackend, toy_config
from tiers import examples

PATTERNS = [
    "a", "ab|b", "a*b+c?", "(ab|c){2}", "[a-c]{1,2}", "[^ab]", ".b", "a{2,}", "(a|b)*c", "a(b|)c",
    r"\d|\w", r"\x61+", r"a\.b", "^ab$", "(?:a|bc)*", "a+?b", "[-a]", "[]a]", "((a?){2}b){1,2}", "",
]  # fmt: skip


def accepts(table: np.ndarray, accepting: np.ndarray, text: bytes) -> bool:
    state = 0
    for value in text:
        state = table[state, value] if state >= 0 else -1
    return state >= 0 and bool(accepting[state])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts_match_as_with_re(pattern):
    table, accepting = byte_automaton(parse(pattern))
    for length in range(6):
        for characters in product("abc.-]1" if length < 4 else "abc", repeat=length):
            text = "".join(characters)
            wanted = re.fullmatch(pattern, text, re.ASCII) is not None
            assert accepts(table, accepting, text.encode()) == wanted, text


def test_wide_characters_are_whole():
    table, accepting = byte_automaton(parse("[^a]é?"))
    for text, wanted in {
        "b": True,
        "é": True,
        "éé": True,
        "€é": True,
        "🙂": True,
        "a": False,
    }.items():
        assert accepts(table, accepting, text.encode()) == wanted
    assert not accepts(table, accepting, "€".encode()[:2])
    assert not accepts(table, accepting, b"\xed\xa0\x80")  # A surrogate.
    assert not accepts(table, accepting, b"\xc0\x80")  # Overlong.


@pytest.mark.parametrize("letter", "dDwWsS")
@pytest.mark.parametrize("others", ["", "a", "é", r"\n"])
def test_what_dialects_differ_about_is_in_no_class(letter, others):
    """No class and no complement contains a character about which dialects differ.

    An Arabic digit is an example.
    """
    for pattern in (rf"\{letter}", rf"[\{letter}{others}]", rf"[^\{letter}{others}]"):
        table, accepting = byte_automaton(parse(pattern))
        assert not any(accepts(table, accepting, text.encode()) for text in "٣€\u00a0ñ🙂")
        for text in map(chr, range(9, 127)):
            if not "\x1c" <= text <= "\x1f":  # Python alone calls these white space.
                wanted = re.fullmatch(pattern, text) is not None
                assert accepts(table, accepting, text.encode()) == wanted, (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "[a", "*a", "a{2", "a{3,2}", "a{99999}", r"\1", r"\p{L}", "(?=a)", "(?i)a",
     "a^b", "a$b", "[[:alpha:]]", "[b-a]", "\\", "((a{900}){900}){900}", "(" * 99 + "a" + ")" * 99],
)  # fmt: skip
def test_what_is_not_supported_is_refused(pattern):
    with pytest.raises(InvalidInput):
        byte_automaton(parse(pattern))


def test_smallest():
    """Equivalent states are merged, so automata of these languages have two and four states."""
    assert len(byte_automaton(parse("(aa|ab|ba|bb)*"))[0]) == 2
    assert len(byte_automaton(parse("abc|xbc|ybc"))[0]) == 4


@examples(60)
@given(st.integers(-1200, 1200), st.integers(0, 700))
def test_whole_numbers_between(low, size):
    table, accepting = byte_automaton(between(low, low + size))
    for number in {low - 1, low, low + 1, low + size // 2, low + size, low + size + 1, 0, -low}:
        inside = low <= number <= low + size
        assert accepts(table, accepting, str(number).encode()) == inside
    for text in ("", "-", "-0", "00", f"0{abs(low)}"):
        assert not accepts(table, accepting, text.encode()) or text == str(int(text))


def written(automaton: TokenAutomaton, rng: random.Random) -> list[int]:
    """Return the tokens of a random text of the automaton."""
    state, tokens = 0, []
    while True:
        possible = np.flatnonzero((automaton.table[state] >= 0)[automaton.columns])
        if automaton.accepting[state] and (len(possible) == 0 or rng.random() < 0.3):
            return tokens
        tokens.append(int(rng.choice(possible)))
        state = automaton.step(state, tokens[-1])


@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_what_is_written_under_a_schema_validates(block, compiler, llm, eos):
    refused = 0
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        schema = random_schema(rng)
        constraint = {"type": "json_schema", "value": schema}
        try:
            automaton = compiler.compile(constraint, "diffusion")
        except InvalidInput:
            refused += 1
            continue
        for _ in range(5):
            text = llm.tokenizer.decode(written(automaton, rng))
            jsonschema.validate(json.loads(text), schema)
            # llguidance agrees, but only with the tokenizer's own spelling of forced parts.
            matcher, tokens = compiler.compile(constraint).follow(eos), llm.tokenizer.encode(text)
            assert matcher.possible(tokens) == len(tokens)
            assert matcher.allows(tokens, eos[0])
    assert refused <= 8  # multipleOf and format.


VALID = [
    ({"type": ["integer", "null"]}, ["null", "-7", "12"], ["1.5", '"a"']),
    ({"type": "number"}, ["3.25", "-10"], ["01", "1.", "+1"]),
    ({"enum": [1, "a", {"b": [True]}], "type": ["object", "integer"]},
     ["1", '{"b":[true]}'], ['"a"']),
    ({"type": "string", "pattern": '^"?[x\\\\]+$'}, ['"xx"', '"\\"x"', '"\\\\"'], ['""', '"\\x"']),
    ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"},
      "maxItems": 2},
     ["[null]", "[null,true]"], ["[true]", "[null,true,true]"]),
    ({"type": "array", "items": {"const": 1}, "minItems": 2},
     ["[1,1]", "[1,1,1,1]"], ["[]", "[1]"]),
    ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
      "required": ["b"]},
     ['{"b":2}', '{"a":1,"b":2}', '{"b":2,"c":3}', '{"a":1,"b":2,"c":3}'],
     ["{}", '{"a":1}', '{"b":2,"a":1}', '{,"b":2}', '{"b":2,}']),
    ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}},
     ["{}", '{"a":1}', '{"b":2}', '{"a":1,"b":2}'], ['{"a":1"b":2}']),
    ({"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 4}, ["2", "3"], ["1", "4"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), VALID, ids=lambda value: str(value)[:40])
def test_documents_of_a_schema(schema, good, bad):
    table, accepting = byte_automaton(schema_expression(schema))
    for text in good:
        assert accepts(table, accepting, text.encode()), text
        jsonschema.validate(json.loads(text), schema)
    for text in bad:
        assert not accepts(table, accepting, text.encode()), text


@pytest.mark.parametrize(
    "given_constraint",
    [
        {"type": "json_object"},
        {"type": "lark", "value": 'start: "a"'},
        {"type": "json_schema", "value": TREE},
        {"type": "json_schema", "value": {}},
        {"type": "json_schema", "value": {"type": "array"}},
        {"type": "json_schema", "value": {"type": "string", "format": "date"}},
        {"type": "json_schema", "value": {"type": "object", "minProperties": 2}},
        {"type": "json_schema", "value": {"type": "object", "required": ["a"]}},
        {"type": "json_schema", "value": {"type": "integer", "minimum": 3, "maximum": 2}},
        {"type": "json_schema", "value": {"type": "string", "enum": [1]}},
        {"type": "json_schema", "value": {"type": "string", "maxLength": 5000}},
        {"type": "json_schema", "value": {"type": "array", "items": PERSON, "maxItems": 900}},
        {"type": "regex", "value": "(.{0,1000}){0,1000}"},
    ],
    ids=str,
)
def test_what_cannot_be_an_automaton_is_refused(compiler, given_constraint):
    with pytest.raises(InvalidInput):
        compiler.compile(given_constraint, "diffusion")


def test_every_way_to_spell_a_text_in_tokens_is_allowed():
    spellings = [b"", b"a", b"ab", b"b", b"abc", b"c", b"abcd"]
    automaton = token_automaton(parse("abc"), spellings)
    texts = {
        tokens
        for length in range(1, 4)
        for tokens in product(range(len(spellings)), repeat=length)
        if automaton.follow([]).possible(tokens) == length and automaton.follow([]).complete(tokens)
    }
    assert texts == {(1, 3, 5), (2, 5), (4,)}


def with_stops(stops: tuple[int, ...]) -> list[int]:
    """Return what the toy writes of ``5 6``, ``7 8`` or ``7 5 9`` if ``stops`` end the output."""
    steps = [{5: 1, 7: 2}, {6: 4}, {8: 4, 5: 3}, {9: 4}, {}]
    constraint = TokenAutomaton.of(steps, [4], toy_config().vocab_size)
    params = SamplingParams(max_tokens=8, stop_token_ids=stops, logit_bias={5: 9.0})
    engine = Engine({TARGET: ToyBackend()})
    prompt = np.array([5, 6], np.int32)
    asked = GenerationRequest(prompt, parse_spec("greedy"), params, constraint=constraint)
    sequence = engine.add(asked)
    while engine.busy:
        engine.step()
    assert sequence.error is None
    return list(sequence.output)


def test_texts_avoid_stop_tokens_inside():
    assert with_stops(())[:2] == [5, 6]
    assert with_stops((5,))[:2] == [7, 8]
    assert with_stops((8,))[:2] == [5, 6]


def test_stop_tokens_that_every_text_has_are_refused():
    with pytest.raises(InvalidInput, match="leave out"):
        with_stops((5, 8))
