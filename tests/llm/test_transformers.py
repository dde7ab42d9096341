"""transformers' `generate` with Paradecode equals transformers' own greedy loop."""

from collections.abc import Iterator
from typing import Any

import pytest

from paradecode import LLM
from paradecode.core.errors import InvalidInput
from paradecode.transformers import decode_with
from tiny_folder import write_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, LLM]]:
    folder = write_folder(tmp_path_factory.mktemp("m") / "llama", "llama", model_type="llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.pad_token_id = 1
    with LLM(folder, backend="torch", dtype="fp32") as llm:
        yield model, llm


@pytest.mark.parametrize("decoder", ["greedy", "suffix(budget=fixed)"])
def test_greedy_outputs_are_equal(both: tuple[Any, LLM], decoder: str) -> None:
    model, llm = both
    ids = torch.tensor([[1, 1, 5, 6, 7, 5, 6], [9, 8, 7, 9, 8, 7, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    asked = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 24, "do_sample": False}
    expected = model.generate(**asked)
    end = int(expected[0, 12])  # A token that ends one of the rows earlier.
    for ends in (None, end):
        plain = model.generate(**asked, eos_token_id=ends)
        ours = model.generate(
            **asked, eos_token_id=ends, custom_generate=decode_with(llm, decoder=decoder)
        )
        assert torch.equal(ours, plain)


def test_samples_repeat_with_the_seed(both: tuple[Any, LLM]) -> None:
    model, llm = both
    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 8, "do_sample": True}
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(model.generate(**asked, custom_generate=decode_with(llm)).tolist())
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(("setting", "named"), [
    ({"num_beams": 2}, "num_beams"), ({"no_repeat_ngram_size": 2}, "NoRepeatNGram"),
])  # fmt: skip
def test_what_it_does_not_do_is_refused(both, setting, named):
    model, llm = both
    with pytest.raises(InvalidInput, match=named):
        model.generate(
            torch.tensor([[5, 6, 7]]), max_new_tokens=4, custom_generate=decode_with(llm), **setting
        )
