"""The default model, divided among processes, gives the tokens of one process."""

from dataclasses import replace

import pytest

from paradecode import LLM, SamplingParams
from paradecode.core.errors import InvalidInput
from paradecode.models.parts import Layer
from paradecode.models.recurrence import Convolution
from paradecode.models.tiny import tiny_checkpoint
from paradecode_lab.measure.plan.described import Device, PlacedLayers, Plan
from paradecode_lab.measure.plan.pieces import Anatomy, anatomy_of, by_bits, opened
from paradecode_lab.measure.plan.processes import Processes, check_runnable

TEXTS = ("One two three four five six", "The capital of France is", "def add(a, b):\n")
PASSES = 8
LAYERS = (PlacedLayers("a", "0-11"), PlacedLayers("b", "12-29"))
HALVES = (PlacedLayers("a", "0-29", "attention"), PlacedLayers("b", "0-29", "feed"))


def visits(stages: tuple[PlacedLayers, ...], model: Anatomy, head: str = "") -> list:
    machines = {"a": Device(1.0, 1.0), "b": Device(1.0, 1.0)}
    return Plan(machines, stages, head=head).visits(model.pieces)


@pytest.fixture(scope="module")
def fleet():
    with Processes(None, {"a": 1, "b": 1}, room=64, flights=len(TEXTS)) as fleet:
        yield fleet


@pytest.mark.parametrize("stages", [LAYERS, HALVES], ids=["layers", "halves"])
@pytest.mark.parametrize("flights", [1, 2, 3])
def test_two_processes_give_the_same_tokens(llm: LLM, fleet: Processes, stages, flights):
    prompts = [llm.tokenizer.encode(text) for text in TEXTS[:flights]]
    params = SamplingParams(max_tokens=PASSES)
    plain = [tuple(one.token_ids) for one in llm.complete(prompts, params, decoder="greedy")]
    assert all(len(tokens) == PASSES for tokens in plain)
    head = "a" if stages is HALVES else ""
    places = visits(stages, opened("model", None, None), head)
    assert fleet.fly(places, prompts, PASSES).tokens == tuple(plain)


@pytest.mark.parametrize(("changed", "said"), [
    (lambda layer: Layer((*layer.parts[:1], Convolution(3), *layer.parts[1:])), "without states"),
    (lambda layer: Layer((layer.parts,)), "side by side"),
])  # fmt: skip
def test_models_that_cannot_be_divided_are_refused(changed, said):
    plain, _ = tiny_checkpoint("llama")
    config = replace(plain, stack=tuple(map(changed, plain.stack)))
    stages = (PlacedLayers("a", "0-1", "attention"), PlacedLayers("b", "0-1", "feed"))
    with pytest.raises(InvalidInput, match=said):
        check_runnable(config, visits(stages, anatomy_of(config, by_bits(16))))
