"""The answers of llguidance about a path depend only on the path, and are right."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from constraint_schemas import PERSON, TREE

from paradecode import LLM
from paradecode.core.errors import DecoderError, InvalidInput
from tiny_folder import write_folder

GIVEN = {
    "person": {"type": "json_schema", "value": PERSON},
    "tree": {"type": "json_schema", "value": json.dumps(TREE)},
    "any object": {"type": "json_object"},
    "regex": {"type": "regex", "value": "(foo|bar)[0-9]{2,3}( hello world)?"},
    "lark": {"type": "lark", "value": 'start: "x" start "y" | "[" /[a-z ]*/ "]"'},
    "choice": {"type": "choice", "value": ["yes", "yesterday", 'no "quote"', "näh\n"]},
}


@pytest.mark.parametrize("name", GIVEN)
def test_answers_do_not_depend_on_what_was_asked_before(name, compiler, eos):
    rng = random.Random(name)
    constraint = compiler.compile(GIVEN[name])
    wanderer, path = constraint.follow(eos), []
    for _ in range(60):
        mask = wanderer.mask(path)
        fresh = constraint.follow(eos)
        assert (mask is None) == (fresh.mask(path) is None)
        if mask is None:
            path = path[: rng.randrange(len(path))]
            continue
        assert (mask == fresh.mask(path)).all()
        assert wanderer.complete(path) == fresh.complete(path)
        tokens = [*rng.sample(range(len(mask)), 40), *np.flatnonzero(mask)[:40].tolist(), *eos]
        assert [wanderer.allows(path, token) for token in tokens] == mask[tokens].tolist()
        if rng.random() < 0.2:  # Somewhere else, and back by another way.
            path = path[: rng.randrange(len(path) + 1)]
        else:
            path.append(int(rng.choice(np.flatnonzero(mask))))


@pytest.mark.parametrize("name", GIVEN)
def test_committing_is_the_same_as_a_path(name, compiler, eos):
    rng = random.Random(name)
    constraint = compiler.compile(GIVEN[name])
    one, two, path = constraint.follow(eos), constraint.follow(eos), []
    for _ in range(20):
        mask = one.mask(())
        if mask is None or one.complete(()):
            break
        assert (mask == two.mask(path)).all()
        assert one.forced((), 8) == two.forced(path, 8)
        token = int(rng.choice(np.flatnonzero(mask)))
        one.allows((token, token), token)  # A look ahead leaves no trace.
        one.advance([token])
        path.append(token)
        if token in eos:
            break


def test_valid_documents_pass_token_by_token_and_invalid_ones_do_not(compiler, llm, eos):
    constraint = compiler.compile(GIVEN["person"])
    good = ['{"name":"Ann","age":31,"tags":[]}', '{"name":"","age":0,"tags":["red","blue"]}']
    bad = ['{"name":"Ann","age":131,"tags":[]}', '{"age":1}', '{"name":"A","age":1,"tags":["x"]}']
    for text in good:
        path = llm.tokenizer.encode(text, special=False)
        matcher = constraint.follow(eos)
        assert matcher.possible(path) == len(path)
        assert matcher.complete(path)
        assert [matcher.allows(path[:at], eos[0]) for at in range(len(path))] == [False] * len(path)
        matcher.advance([*path, eos[0]])
    for text in bad:
        path = llm.tokenizer.encode(text, special=False)
        matcher = constraint.follow(eos)
        assert matcher.possible(path) < len(path)
        with pytest.raises(DecoderError, match="forbids"):
            matcher.advance(path)


def test_a_text_may_end_only_where_it_is_complete(compiler, llm, eos):
    matcher = compiler.compile({"type": "regex", "value": "[a-z]{2,}"}).follow(eos)
    short, enough = ([llm.tokenizer.encode(text)[0]] for text in ("q", "qu"))
    assert not matcher.mask(short)[list(eos)].any()
    assert matcher.mask(enough)[list(eos)].all()
    assert not matcher.complete(enough)
    with pytest.raises(DecoderError, match="open"):
        matcher.advance([*short, eos[0]])


def test_other_tokens_may_end_the_text_and_eos_may_not(compiler, llm, eos):
    stop = llm.tokenizer.encode("stop")[0]
    matcher = compiler.compile({"type": "regex", "value": "[a-z]+"}).follow([stop])
    path = [llm.tokenizer.encode("b")[0]]
    assert not matcher.mask(())[stop]  # A letter of the grammar, but the request's end.
    assert matcher.mask(path)[stop]
    assert not matcher.mask(path)[list(eos)].any()
    assert matcher.mask([*path, stop]) is None  # Nothing follows an end.


def test_forced_tokens_spell_the_only_text(compiler, llm, eos):
    matcher = compiler.compile(GIVEN["person"]).follow(eos)
    assert llm.tokenizer.decode(matcher.forced((), 8)) == '{"name":"'
    assert len(matcher.forced((), 1)) == 1
    assert matcher.forced(matcher.forced((), 8), 8) == []
    path = llm.tokenizer.encode('{"name":"Ann"', special=False)
    assert llm.tokenizer.decode(matcher.forced(path, 8)) == ',"age":'


def test_tokens_that_the_tokenizer_lacks_are_never_allowed(llm, eos):
    from paradecode.constraints.compile import Compiler

    wide = Compiler(llm.tokenizer, llm.config.vocab_size + 100, eos)
    mask = wide.compile({"type": "regex", "value": "(.|\n)*"}).follow(eos).mask(())
    assert len(mask) == llm.config.vocab_size + 100
    assert not mask[llm.config.vocab_size :].any()
    control = [i for i in range(llm.config.vocab_size) if llm.tokenizer.is_control(i)]
    assert set(np.flatnonzero(mask[control])) <= {control.index(token) for token in eos}


def test_a_text_that_no_token_begins_ends_its_request_only(tmp_path):
    with LLM(str(write_folder(tmp_path, "llama"))) as llm:  # Its tokenizer has no line break.
        with pytest.raises(InvalidInput, match="cannot complete"):
            llm.complete("abc", constraint={"type": "regex", "value": r"\n{9}b?"}, max_tokens=4)
        assert llm.complete("abc", constraint={"type": "regex", "value": "b{2}"}).text == "bb"


def test_a_grammar_that_the_tokens_cannot_finish_ends_its_request_only(llm):
    # Every way to write the closing bracket is a stop token, so no output can close it.
    stops = [i for i in range(llm.config.vocab_size) if llm.tokenizer.token(i).startswith("]")]
    with pytest.raises(InvalidInput, match="cannot complete"):
        llm.complete(
            "x",
            constraint={"type": "regex", "value": r"\[\]"},
            stop_token_ids=[*stops, *(llm.tokenizer.encode("[]"))],
        )
