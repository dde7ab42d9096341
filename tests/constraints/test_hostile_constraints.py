"""A hostile constraint gets a clear error soon, for its own request only, and nothing crashes."""

from __future__ import annotations

import json
import math
import string
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.constraints.regular import automaton
from paradecode.constraints.regular.automaton import byte_automaton
from paradecode.constraints.regular.expressions import parse
from paradecode.constraints.trial import GrammarTrial
from paradecode.core.errors import InvalidInput
from tiers import examples

LOOP: dict = {}
LOOP["items"] = LOOP

REFUSED = {
    "a number": 5,
    "a list": [],
    "no type": {},
    "unknown type": {"type": "xml", "value": "<a/>"},
    "unknown field": {"type": "regex", "value": "a", "flags": "i"},
    "type of a wrong type": {"type": ["regex"], "value": "a"},
    "no value": {"type": "regex"},
    "value of json_object": {"type": "json_object", "value": {"type": "string"}},
    "regex is a number": {"type": "regex", "value": 7},
    "empty regex": {"type": "regex", "value": ""},
    "broken regex": {"type": "regex", "value": "(a"},
    "look-ahead": {"type": "regex", "value": "(?=a)b"},
    "long regex": {"type": "regex", "value": "a" * 10_000},
    "deep regex": {"type": "regex", "value": "(" * 2000 + "a" + ")" * 2000},
    "heavy regex": {"type": "regex", "value": "((a{1000}){1000}){1000}"},
    "only the empty text": {"type": "regex", "value": "(){3}"},
    "surrogate": {"type": "regex", "value": "\ud800"},
    "broken lark": {"type": "lark", "value": "start: ("},
    "lark without start": {"type": "lark", "value": 'a: "x"'},
    "lark that never ends": {"type": "lark", "value": 'start: "a" start'},
    "lark recursing to the left": {"type": "lark", "value": "start: start"},
    "no choices": {"type": "choice", "value": []},
    "empty choice": {"type": "choice", "value": ["a", ""]},
    "choices are numbers": {"type": "choice", "value": [1, 2]},
    "choices are one text": {"type": "choice", "value": "abc"},
    "many choices": {"type": "choice", "value": [str(i) for i in range(5000)]},
    "schema is a number": {"type": "json_schema", "value": 3},
    "schema forbids all": {"type": "json_schema", "value": False},
    "broken JSON": {"type": "json_schema", "value": "{"},
    "NaN in JSON": {"type": "json_schema", "value": '{"const": NaN}'},
    "NaN": {"type": "json_schema", "value": {"const": math.nan}},
    "a set": {"type": "json_schema", "value": {"enum": {1, 2}}},
    "itself": {"type": "json_schema", "value": LOOP},
    "unknown JSON type": {"type": "json_schema", "value": {"type": "text"}},
    "unsupported keyword": {"type": "json_schema", "value": {"not": {"type": "string"}}},
    "overlapping oneOf": {
        "type": "json_schema",
        "value": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    },
    "lenient is not ours to grant": {
        "type": "json_schema",
        "value": {"x-guidance": {"lenient": True}, "not": {"type": "string"}},
    },
    "schema of nothing": {"type": "json_schema", "value": {"$ref": "#"}},
    "remote reference": {"type": "json_schema", "value": {"$ref": "http://example.com/s"}},
    "file reference": {"type": "json_schema", "value": {"$ref": "file:///etc/passwd"}},
    "dangling reference": {"type": "json_schema", "value": {"$ref": "#/$defs/none"}},
    "long schema": {"type": "json_schema", "value": {"enum": ["x" * 100] * 1000}},
    "deep schema": {"type": "json_schema", "value": json.loads('{"items":' * 90 + "{}" + "}" * 90)},
    "empty range": {
        "type": "json_schema",
        "value": {"type": "integer", "minimum": 3, "maximum": 2},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(llm, name):
    with pytest.raises(InvalidInput) as caught:
        llm.complete("x", max_tokens=64, constraint=REFUSED[name], ignore_eos=True)
    assert caught.value.field.startswith("constraint")
    assert len(str(caught.value)) < 500
    assert not llm.engine.busy


HEAVY = {
    "a million characters": {"type": "string", "minLength": 10**6, "maxLength": 10**7},
    "a million items": {"type": "array", "minItems": 10**5, "maxItems": 10**6},
    "arrays of arrays of arrays": {
        "type": "array",
        "maxItems": 1000,
        "items": {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000}},
    },
    "many properties": {"properties": {f"p{i}": {"type": "integer"} for i in range(2000)}},
    "references that double": {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} if i < 40 else {"type": "null"}
            for i in range(41)
        },
    },
    "all of any of": {
        "allOf": [
            {"anyOf": [{"minimum": i}, {"maximum": -i}, {"type": "string", "minLength": i}]}
            for i in range(1, 10)
        ]
    },
    # These chains are as deep as the permitted size allows, because the library recurses.
    "a chain of references": {
        "$ref": "#/$defs/0",
        "$defs": {
            str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}]} if i < 1300 else {"type": "null"}
            for i in range(1301)
        },
    },
    "a chain of objects": {
        "$ref": "#/$defs/0",
        "$defs": {
            str(i): {
                "type": "object",
                "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}},
                "required": ["a"],
            }
            if i < 650
            else {"type": "null"}
            for i in range(651)
        },
    },
    "a chain of nests": {
        "$ref": "#/$defs/0",
        "$defs": {
            str(i): json.loads(
                '{"allOf":[{"anyOf":[' * 15 + f'{{"$ref":"#/$defs/{i + 1}"}}' + "]}]}" * 15
            )
            if i < 130
            else {"type": "null"}
            for i in range(131)
        },
    },
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_schemas_are_bounded(llm, name):
    """Heavy schemas compile or are refused. Without bounds, most would never end."""
    with suppress(InvalidInput):
        constraint = {"type": "json_schema", "value": HEAVY[name]}
        output = llm.complete("x", max_tokens=4, constraint=constraint)
        assert output.finish_reason in ("length", "stop")


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_schemas_are_bounded_on_a_canvas(compiler, name):
    """On a canvas, this project's own compiler is bounded, and refuses most heavy schemas."""
    with suppress(InvalidInput):
        compiler.compile({"type": "json_schema", "value": HEAVY[name]}, "diffusion")


@pytest.mark.first(1)
@pytest.mark.parametrize("value", ["((((){1000}){1000}){1000}){1000}b", "(a?){1000}(b?){1000}"])
def test_heavy_expressions_are_refused_on_a_canvas(compiler, value):
    with pytest.raises(InvalidInput, match="smaller"):
        compiler.compile({"type": "regex", "value": value}, "diffusion")


@pytest.mark.wide
def test_long_expressions_are_made_small_soon():
    """Merging the states of a long expression takes few rounds.

    One round for each of its four thousand states would take 9 s.
    """
    letters = string.ascii_letters + string.digits
    pattern = f"{letters[:60]}!|{'[a-zA-Z0-9]{1000}' * 3}[a-zA-Z0-9]{{800}}"
    began = time.process_time()
    table, _ = byte_automaton(parse(pattern))
    assert len(table) == 3861
    assert time.process_time() - began < 5  # Measured: 1.3.


def test_making_it_small_has_a_bound(monkeypatch):
    monkeypatch.setattr(automaton, "MOST_CELLS_REFINED", 10_000)
    with pytest.raises(InvalidInput, match="smaller"):
        byte_automaton(parse("(a|b)*a(a|b){9}"))


ENDLESS = {
    "allOf": [
        {"type": "string", "pattern": f".*{chr(97 + i % 26)}.{{{i + 5}}}.*"} for i in range(40)
    ]
}
"""A constraint that the library's own limits do not end within minutes."""


def test_a_trial_ends_what_would_not_end(monkeypatch):
    monkeypatch.setattr("paradecode.constraints.trial.SECONDS", 1)
    trial = GrammarTrial()
    try:
        for _ in range(2):  # The second time from memory.
            with pytest.raises(InvalidInput, match="compiling it takes more than"):
                trial.check("json_schema", ENDLESS)
        trial.check("json_schema", HEAVY["many properties"])  # In another process.
        with pytest.raises(InvalidInput, match="unclosed group"):
            trial.check("regex", "(")  # So the engine's process need not compile it.
        with pytest.raises(InvalidInput, match="1 to 8192"):
            trial.check("regex", "a" * 10_000)
    finally:
        trial.close()


def test_a_process_that_died_while_idle_is_no_fault_of_the_next_grammar():
    trial = GrammarTrial()
    try:
        trial.check("choice", ["yes"])
        trial._process.kill()  # As the system does where memory is short.
        trial._process.wait()
        trial.check("choice", ["no", "maybe"])
    finally:
        trial.close()


def test_long_chains_of_lark_rules_do_not_crash(llm):
    for letter in ("r", "R"):  # Rules, and terminals.
        rules = [f"{letter}{i}: {letter}{i + 1}" for i in range(4000)]
        text = "\n".join([f"start: {letter}0", *rules, f'{letter}4000: "a"'])
        with suppress(InvalidInput):
            assert llm.complete("x", constraint={"type": "lark", "value": text}).text == "a"


def test_a_constraint_that_becomes_too_complex_costs_its_own_request_only(llm):
    bad = {"type": "lark", "value": "start: s\ns: s s s | s s | /a/ | /[ab]+/ | "}
    params = {"max_tokens": 64, "temperature": 1.0, "seed": 1, "ignore_eos": True}
    good = llm.complete("Good day", **params)
    from paradecode.core.sampling import SamplingParams

    ids = llm.encode("Good day")
    (first,) = llm.requests(ids, SamplingParams(**params), {"constraint": bad})
    (second,) = llm.requests(ids, SamplingParams(**params), {})
    sequences = [llm.engine.add(first), llm.engine.add(second)]
    while llm.engine.busy:
        llm.engine.step()
    assert sequences[0].finish_reason in ("error", "length", "stop")
    assert sequences[1].output == good.token_ids
    llm.engine.check()


def test_the_cache_of_compiled_constraints_is_bounded(compiler):
    from paradecode.constraints.compile import KEPT

    first = compiler.compile({"type": "regex", "value": "x"})
    assert compiler.compile({"value": "x", "type": "regex"}) is first
    for i in range(KEPT):
        compiler.compile({"type": "regex", "value": f"x{i}"})
    assert len(compiler._kept) == KEPT
    assert compiler.compile({"type": "regex", "value": "x"}) is not first


def test_a_constraint_of_another_model_is_refused(llm):
    from paradecode.core.automaton import TokenAutomaton
    from paradecode.engine.request import GenerationRequest

    tiny = TokenAutomaton.of([{1: 1}, {}], [1], vocab_size=10)
    (request,) = llm.requests(llm.encode("x"), None, {})
    with pytest.raises(InvalidInput, match="compile it for this model"):
        llm.engine.add(
            GenerationRequest(request.prompt, request.decoder, request.params, constraint=tiny)
        )


def test_tokenizers_that_are_not_byte_level_are_refused():
    pytest.importorskip("llguidance")
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    from paradecode.constraints.compile import Compiler
    from paradecode.models.tokenizer import Tokenizer

    backend = Backend(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2}, merges=[("▁", "a")]))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    compiler = Compiler(Tokenizer(backend, eos=0), 3, (0,))
    with pytest.raises(InvalidInput, match="byte-level"):
        compiler.compile({"type": "regex", "value": "a"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "enum", "const", "anyOf", "allOf", "$ref", "$defs",
                 "minimum", "required", "pattern", "maxLength", "additionalProperties", "format"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@examples(150)
@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["json_schema", "regex", "lark", "choice", "json_object"])},
        optional={"value": JSON | st.text(max_size=30)},
    )
    | JSON
)
def test_anything_compiles_or_is_refused(compiler, given_constraint):
    for family in ("autoregressive", "diffusion"):
        with suppress(InvalidInput):
            matcher = compiler.compile(given_constraint, family).follow((0, 2))
            assert matcher.mask(()) is None or matcher.mask(()).any()
