"""Tests searches that go on step by step: every step sees the whole output before it."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from searching import LOOP, MOST, PROMPT, best, engine, request, run, text_of

from paradecode.core.sampling import SamplingParams
from paradecode.engine.request import GenerationRequest
from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode.models.text_stream import OutputText
from paradecode.search.branch import Asked, Branch, Grow, Searched, SearchTask, Start
from paradecode.search.completion import completion_of_search
from paradecode.search.run import SearchRun, StepText
from paradecode.testing.toy import LetterText, letter

QUESTION = "What is 17 + 25?"
SCHEMA = {
    "type": "object", "required": ["name", "age"], "additionalProperties": False,
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"enum": [7, 12, 31]}},
}  # fmt: skip
WISHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a regex": {"constraint": {"type": "regex", "value": "hello world this is fixed"}},
    "a schema": {"constraint": {"type": "json_schema", "value": SCHEMA}},
    "a least length": {"min_tokens": 14}, "a stop text": {"stop": ["e answe"], "ignore_eos": True},
    "as many stop texts as there may be": {"stop": [*"abcdefghijklmno", "The"]},
    "a stop token": {"stop_token_ids": [520], "ignore_eos": True},
    "a presence penalty": {"presence_penalty": 100.0, "ignore_eos": True},
    "a frequency penalty": {"frequency_penalty": 2.0, "ignore_eos": True},
    "a full context": {"prompt": [i * 7 % 552 for i in range(240)], "ignore_eos": True},
}  # fmt: skip


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("decoder", ["greedy", "prompt-lookup(budget=fixed)"])
def test_one_step_after_another_is_plain_decoding_where_nothing_is_drawn(llm, wish, decoder):
    wishes: dict[str, Any] = {
        "prompt": llm.encode(QUESTION), "max_tokens": 30, "temperature": 0.0,
    } | WISHES[wish]  # fmt: skip
    prompt = wishes.pop("prompt")
    plain = llm.complete([prompt], decoder="greedy", **wishes)[0]
    for step in (1, 3, 8):
        search = f"a-star(k=1,step_tokens={step})"
        found = llm.complete([prompt], decoder=decoder, search=search, **wishes)[0]
        assert found.error is None
        assert (found.token_ids, found.text) == (plain.token_ids, plain.text)
        assert found.finish_reason == plain.finish_reason


def test_a_constraint_holds_over_all_steps(llm: LLM) -> None:
    for seed in range(4):
        found = llm.complete(
            QUESTION, search="a-star(k=3,step_tokens=2)", temperature=1.0, seed=seed,
            constraint={"type": "choice", "value": ["red green", "red blue", "sailor"]},
        )  # fmt: skip
        assert found.text in ("red green", "red blue", "sailor")


def test_steps_find_the_pages_of_those_before_and_cost_what_they_make() -> None:
    found = run("a-star(k=3,step_tokens=20,budget=300)", max_tokens=60, stop=(), ignore_eos=True)
    for sequence, start in zip(found.sequences[1:], found.starts[1:]):
        known = len(PROMPT) + len(start.tokens)
        assert sequence.caches == {}
        assert sequence.output[: len(start.tokens)] == list(start.tokens)
        # A step's first row is that of its last token; all complete pages before it are shared.
        assert sequence.rows - len(sequence.trace) < known - (known - 1) // 16 * 16
    completion = completion_of_search(found)
    assert completion.stats.generated == len(completion.token_ids) == 60
    assert completion.search.tokens == sum(found.made)
    assert [each.tokens for each in completion.search.tree] == found.made
    chosen = [each for each in completion.search.tree if each.chosen]
    assert [len(each.text) for each in chosen] == [20, 20, 20]
    assert "".join(each.text for each in chosen) == completion.text


@dataclass
class ByMarks:
    """A strategy that continues after each mark until the output ends."""

    marks: tuple[str, ...]

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
        found: list[Branch] = []
        while not found or not found[-1].at_end:
            after = found[-1] if found else None
            found += yield Grow([Start(0, after, marks=self.marks)])
        return Searched(found[-1], tuple(found[:-1]))


@pytest.mark.parametrize("decoder", ["greedy", "prompt-lookup(budget=fixed)", "jacobi"])
def test_a_step_ends_at_a_mark_that_it_writes_itself(decoder: str) -> None:
    wishes: dict[str, Any] = {"prompt": LOOP, "temperature": 0.8, "stop": (), "ignore_eos": True}
    own = engine()
    plain = own.add(request(decoder, **wishes))
    while own.busy:
        own.step()
    mark = letter(plain.output[MOST // 2])
    places = [at for at, token in enumerate(plain.output, 1) if letter(token) == mark]
    found = SearchRun(own, request(decoder, **wishes), ByMarks((mark, "~~")), text_of)
    while not found.finished:
        own.step()
        found.advance()
    assert list(best(found).tokens) == plain.output
    assert best(found).text == text_of(plain.output)
    ends = [len(branch.tokens) for branch in found.found.others]
    assert ends == [place for place in places if place < MOST]
    assert all(branch.text.endswith(mark) for branch in found.found.others)
    assert sum(found.made) == MOST


@pytest.mark.parametrize("decoder", ["greedy", "prompt-lookup(budget=fixed)"])
def test_a_backend_that_makes_several_steps_does_not_run_past_a_mark(llm, decoder):
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
    plain = llm.complete(QUESTION, decoder="greedy", max_tokens=40, ignore_eos=True)
    prompt = np.array(llm.encode(QUESTION), np.int32)
    asked = GenerationRequest(prompt, parse(decoder), params)
    found = SearchRun(llm.engine, asked, ByMarks((".",)), llm.tokenizer.decode)
    while not found.finished:
        llm.engine.step()
        found.advance()
    assert list(best(found).tokens) == plain.token_ids
    assert len(found.found.others) == plain.text.count(".") >= 2
    assert all(branch.text.endswith(".") for branch in found.found.others)


def test_a_mark_counts_in_new_text_only_and_behind_stop_texts() -> None:
    before = OutputText(LetterText(), ("xy",))
    for token in map(text_of(range(52)).index, "abab"):
        assert not before.push(token)
    text = StepText(before, ("ba", "bcd", "y"))
    pushed = [text.push(text_of(range(52)).index(said)) for said in "bcd"]
    assert (pushed, text.value, text.marked, text.stopped) == ([0, 0, 1], "ababbcd", True, None)
    text = StepText(before, ("y",))
    pushed = [text.push(text_of(range(52)).index(said)) for said in "xy"]
    assert (pushed, text.value, text.marked, text.stopped) == ([0, 1], "abab", False, "xy")


@pytest.mark.parametrize(
    "decoder", ["greedy", "prompt-lookup(budget=fixed)", "stand(budget=fixed)"]
)
def test_where_fewer_end_than_are_kept_the_method_does_not_matter(llm: LLM, decoder: str) -> None:
    choices = {"type": "choice", "value": ["red", "blue", "red blue", "green"]}
    found = llm.complete(
        [[318] * 20], decoder=decoder, search="ffs(n=3,keep=3)", max_tokens=5, temperature=1.0,
        seed=601, constraint=choices,
    )[0]  # fmt: skip
    assert (found.text, found.search.scores) == ("blue", (-4.0, -5.0, -5.0))
    assert [other.text for other in found.alternatives] == ["green", "red b"]


@pytest.mark.parametrize("search", ["best-of(n=2)", "a-star(k=2,step_tokens=4)"])
def test_log_probabilities_are_told_only_if_they_were_asked_for(llm: LLM, search: str) -> None:
    wishes: dict[str, Any] = {"search": search, "temperature": 1.0, "seed": 1, "max_tokens": 12}
    plain = llm.complete(QUESTION, **wishes)
    assert [one.logprobs for one in (plain, *plain.alternatives)] == [None] * (
        1 + len(plain.alternatives)
    )
    scored = llm.complete(QUESTION, logprobs=0, **wishes)
    for one in (scored, *scored.alternatives):
        assert one.logprobs is not None
        assert [entry.token for entry in one.logprobs] == one.token_ids
