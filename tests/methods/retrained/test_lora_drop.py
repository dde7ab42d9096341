"""LoRA-Drop gives the same tokens as a plain implementation without engine and cache."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from toys import check_refused, check_resumed, check_rows_are_its_own, in_float64, requests

from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.methods.retrained.layers import DropAdapters
from paradecode.methods.specs import parse
from paradecode.testing.conformance import cases
from paradecode.testing.machines import CONTEXT
from paradecode.testing.toy import WIDTH, ToyBackend, toy_config

MODEL = "paradecode/tiny-autoregressive"


def adapters(layers: int, width: int, dropped: list[int], size: float) -> DropAdapters:
    random = np.random.default_rng(0)
    facts = {"layers": layers, "hidden_size": width, "rank": 3, "dropped": dropped}
    shapes = DropAdapters(facts, {}).shapes().items()
    made = {name: size * random.standard_normal(shape).astype(np.float32) for name, shape in shapes}
    return DropAdapters(facts, made)


def deep(kind=None):
    """Create a toy of five layers; sums destroy its states, so its LoRA must be zero."""
    config = toy_config(29, CONTEXT).altered(layers=5)
    return {TARGET: ToyBackend(config, surprise=600)}


@pytest.fixture(scope="module")
def of_toy(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "toy"
    adapters(5, WIDTH, [1, 3], 0.0).save(path)
    return path


def by_the_book(model, prompt, made, window, count):
    """Return greedy tokens; each runs alone, with keys and values only in layers that it ran."""
    import torch

    from paradecode.backends.torch.model import attention

    text, dropped = list(prompt), made.facts["dropped"]
    keys, values = ([[] for _ in range(model.config.layers)] for _ in range(2))
    last = {}

    def attend(layer, q, k, v):
        keys[layer].append(k)
        values[layer].append(v)
        seen = torch.ones(1, len(keys[layer]), dtype=torch.bool)
        return attention(q, torch.cat(keys[layer]), torch.cat(values[layer]), seen)

    for at in range(len(prompt) + count - 1):
        x = model.embed(torch.tensor([text[at]]))
        rows = model.rows(torch.tensor([at]))
        behind = at - (len(prompt) - 1)
        for layer in range(model.config.layers):
            if layer in dropped and behind > 0 and behind % (window + 1) != 0:
                a, b = (torch.tensor(made.tensors[f"{layer}.{n}"]).double() for n in "ab")
                x = last[layer] + x @ a @ b
            else:
                x = last[layer] = model.layer(layer, x, rows, attend)
        if behind >= 0:
            text.append(int(model.logits(x).argmax()))
            if text[-1] in model.config.eos_tokens:
                break
    return text[len(prompt) :]


@pytest.mark.parametrize(("dropped", "window"), [([3, 4], 3), ([1, 3, 4], 2), ([2], 1)])
def test_the_plain_reading_gives_the_same_tokens(tmp_path, dropped, window):
    model = in_float64(MODEL)
    made, path = adapters(6, model.config.hidden_size, dropped, 0.1), tmp_path / "adapters"
    made.save(path)
    with LLM(MODEL, backend="torch", dtype="fp64", threads=1) as llm:
        asked = ("copy: Ana Bob", "add: 47 + 85", "sort: 3 1 2", "reverse: Ben Sam Art Ida")
        prompts = [llm.encode(text) for text in asked]
        wanted = [by_the_book(model, prompt, made, window, 11) for prompt in prompts]
        spec = f"lora-drop(adapters='{path}',window={window})"
        found = llm.complete(prompts, decoder=spec, max_tokens=11)
        plain = llm.complete(prompts, decoder="greedy", max_tokens=11)
    assert [one.token_ids for one in found] == wanted
    assert [one.token_ids for one in plain] != wanted
    for prompt, one in zip(prompts, found, strict=True):
        runs = len(one.token_ids)
        short = sum(behind % (window + 1) != 0 for behind in range(runs))
        # The prompt without its last token, then each token once, in as many layers as it runs.
        assert one.stats.forwards == 1 + runs
        whole = len(prompt) - 1 + runs
        assert abs(one.stats.rows - (whole - short * len(dropped) / 6)) < 0.51


def test_without_a_window_it_is_plain_decoding(of_toy):
    spec = f"lora-drop(adapters='{of_toy}',window=0)"
    only = ("constrained", "prefix-cache")
    exact = partial(cases, guarantee="exact", kinds=("toy",), only=only)
    for case in exact(lambda: parse(spec)(), deep):
        case.run()


def test_what_every_method_promises(of_toy):
    only = ("mixed-methods", "cancelled-neighbour")
    for case in cases(f"lora-drop(adapters='{of_toy}',window=3)", deep, kinds=("toy",), only=only):
        case.run()


def test_rows_with_holes_are_not_reused_by_others(of_toy):
    check_rows_are_its_own(f"lora-drop(adapters='{of_toy}',window=3)", deep, requests()[::3])


@pytest.mark.parametrize("cached", [False, True])
def test_another_worker_goes_on_with_the_same_holes(of_toy, cached):
    check_resumed(f"lora-drop(adapters='{of_toy}',window=3)", deep, requests()[::4], cached)


def test_the_window_must_be_given(of_toy):
    with pytest.raises(InvalidInput, match=r"lora-drop\.window: .* write window=N"):
        parse(f"lora-drop(adapters='{of_toy}')")()


def test_files_that_do_not_fit_are_refused(tmp_path, of_toy):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(of_toy.read_bytes()[:-4])
    good = adapters(6, 192, [3, 4], 0.1)
    refused = {"": "train lora-drop", of_toy: "layers 5", damaged: "train it again",
               tmp_path / "none": "readable file"}  # fmt: skip
    for number, dropped in enumerate(
        ([], [0, 3], [5], [4, 3], [3, 3], [True, 3], [1.0, 3], "3", None)
    ):
        path = tmp_path / str(number)
        replace(good, facts={**good.facts, "dropped": dropped}).save(path)
        refused[path] = "inner layers"
    replace(good, facts={**good.facts, "rank": 4}).save(tmp_path / "thin")
    refused[tmp_path / "thin"] = "wrong shape"
    check_refused("lora-drop(adapters='{}',window=3)", refused)
