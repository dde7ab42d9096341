"""On the real, quantised model: parallel output equals plain output, token by token."""

import json
from importlib.resources import files

import pytest

from paradecode import LLM, SamplingParams
from paradecode.cli.side_by_side import PROMPTS as DEMO

FILE = files("paradecode_lab.measure").joinpath("prompts.jsonl")
PROMPTS = [
    turn for line in FILE.read_text("utf-8").splitlines() for turn in json.loads(line)["turns"]
]


@pytest.mark.parametrize(("title", "expected"), [
    ("open question", "problem-solving"), ("edit", 'print("Good morning, " + name + "!")'),
])  # fmt: skip
def test_demo_answers_make_sense(llm: LLM, title: str, expected: str) -> None:
    answer = llm.chat([{"role": "user", "content": DEMO[title]}], max_tokens=96)
    assert expected in answer.text


@pytest.mark.first(1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_parallel_equals_plain(llm: LLM, temperature: float) -> None:
    prompts = [
        llm.chat_tokens([{"role": "user", "content": text}]) for text in PROMPTS[::24]
    ]  # fmt: skip
    params = SamplingParams(max_tokens=32, min_tokens=32, temperature=temperature, seed=7)
    plain = llm.complete(prompts, params, decoder="greedy")
    parallel = llm.complete(prompts, params, decoder="prompt-lookup(budget=fixed)")
    assert [c.token_ids for c in parallel] == [c.token_ids for c in plain]
    assert sum(c.stats.accepted for c in parallel) > len(prompts)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_parallel_equals_plain_on_every_prompt(llm: LLM, temperature: float) -> None:
    prompts = [llm.chat_tokens([{"role": "user", "content": text}]) for text in PROMPTS]
    assert len(prompts) >= 100
    params = SamplingParams(max_tokens=64, min_tokens=64, temperature=temperature, seed=7)
    plain = [llm.complete([prompt], params, decoder="greedy")[0] for prompt in prompts]
    parallel = llm.complete(prompts, params, decoder="prompt-lookup(budget=fixed)")
    assert [c.token_ids for c in parallel] == [c.token_ids for c in plain]
