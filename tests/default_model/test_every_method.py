"""Every exact method on the real, quantised model in the native core equals plain decoding."""

import pytest

from paradecode import LLM, SamplingParams
from paradecode.methods.specs import methods

PROMPTS = (
    "Write a list of five fruits and five vegetables.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
    "Fix the grammar: He go to school every days and he like the school very much.",
)
EXACT = sorted(
    name
    for name, method in methods().items()
    if method.family == "autoregressive"
    and method.guarantee == "exact"
    and method.training == "none"
    and not method.models
)
FUSED = ["auto", "prompt-lookup+token-recycling", "suffix+stand+token-recycling"]


@pytest.fixture(scope="module")
def plain(llm: LLM) -> dict[float, list[list[int]]]:
    return {temperature: answers(llm, "greedy", temperature) for temperature in (0.0, 0.8)}


def answers(llm: LLM, decoder: str, temperature: float) -> list[list[int]]:
    prompts = [llm.chat_tokens([{"role": "user", "content": text}]) for text in PROMPTS]
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=11)
    outputs = llm.complete(prompts, params, decoder=decoder, salt=decoder)
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.token_ids for output in outputs]


@pytest.mark.first(2)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", [*EXACT, *FUSED])
def test_equal_to_plain(llm, plain, name, temperature):
    # The fixed budget verifies every draft, whatever this machine's timing says.
    known = (
        {parameter.name for parameter in methods()[name].parameters} if name in methods() else {}
    )
    decoder = f"{name}(budget=fixed)" if "budget" in known else name
    assert answers(llm, decoder, temperature) == plain[temperature]
