"""On the real, quantised model: parallel output equals plain output, token by token."""

import json

import pytest

from paradecode import LLM, SamplingParams
from paradecode.cli.side_by_side import PROMPTS, RECORD, decoded
from repository import ROOT

# The wheel's tests have no laboratory.
FILE = ROOT / "lab" / "src" / "paradecode_lab" / "measure" / "prompts.jsonl"
TEXTS = [
    turn for line in FILE.read_text("utf-8").splitlines() for turn in json.loads(line)["turns"]
]


def test_the_open_answer_of_the_demo_makes_sense(llm: LLM) -> None:
    assert "problem-solving" in llm.chat(PROMPTS["open question"], max_tokens=96).text


def test_the_edit_of_the_demo_is_right_and_gains(llm: LLM) -> None:
    answer = decoded(llm, PROMPTS["edit"], 320, llm.decoder, "", lambda *shown: None)
    assert answer.text == RECORD.replace("Paris", "London")
    assert answer.stats.tokens_per_forward > 2.5


@pytest.mark.first(1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_parallel_equals_plain(llm: LLM, temperature: float) -> None:
    prompts = [
        llm.chat_tokens([{"role": "user", "content": text}]) for text in TEXTS[::24]
    ]  # fmt: skip
    params = SamplingParams(max_tokens=32, min_tokens=32, temperature=temperature, seed=7)
    plain = llm.complete(prompts, params, decoder="greedy")
    parallel = llm.complete(prompts, params, decoder="prompt-lookup(budget=fixed)")
    assert [c.token_ids for c in parallel] == [c.token_ids for c in plain]
    assert sum(c.stats.accepted for c in parallel) > len(prompts)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_parallel_equals_plain_on_every_prompt(llm: LLM, temperature: float) -> None:
    prompts = [llm.chat_tokens([{"role": "user", "content": text}]) for text in TEXTS]
    assert len(prompts) >= 100
    params = SamplingParams(max_tokens=64, min_tokens=64, temperature=temperature, seed=7)
    plain = [llm.complete([prompt], params, decoder="greedy")[0] for prompt in prompts]
    parallel = llm.complete(prompts, params, decoder="prompt-lookup(budget=fixed)")
    assert [c.token_ids for c in parallel] == [c.token_ids for c in plain]
