"""FiRST runs the same layers as a plain implementation without engine and cache."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import toys
from toys import check_refused, check_resumed, check_rows_are_its_own, requests, toy

from paradecode.llm import LLM
from paradecode.methods.retrained.layers import Routers
from paradecode.methods.specs import parse
from paradecode.testing.conformance import cases
from paradecode.testing.toy import WIDTH

MODEL = "paradecode/tiny-autoregressive"


def routers(layers: int, width: int, seed: int = 0) -> Routers:
    random = np.random.default_rng(seed)
    weight = random.standard_normal((layers - 1, width)).astype(np.float32)
    facts = {"layers": layers, "hidden_size": width}
    return Routers(facts, {"weight": weight, "bias": np.zeros(layers - 1, np.float32)})


@pytest.fixture(scope="module")
def of_toy(tmp_path_factory):
    path = tmp_path_factory.mktemp("routers") / "toy"
    made = routers(2, WIDTH)  # A toy's state holds four numbers of equal size and a token id.
    replace(made, tensors={**made.tensors, "weight": np.array([[1, -1, 1, -1, 0]])}).save(path)
    return path


def by_the_book(model, prompt, made, count):
    """Return greedy tokens and the layers that run; reference implementation in float64.

    It computes the whole text again for each token.
    """
    import torch

    text, kept = list(prompt), [0]
    while len(text) < len(prompt) + count:
        x = model.embed(torch.tensor(text))
        rows = model.rows(torch.arange(len(text)))
        for layer in range(model.config.layers):
            y = model.layer(layer, x, rows, toys.attend_causally)
            if layer and len(text) == len(prompt):
                entered = x[-1].numpy()
                entered = entered / np.sqrt((entered**2).mean() + 1e-6)
                logit = made.tensors["weight"][layer - 1] @ entered
                logit += made.tensors["bias"][layer - 1]
                kept += [layer] * int(1 / (1 + np.exp(-logit)) >= 0.5)
            runs = torch.tensor([at < len(prompt) or layer in kept for at in range(len(text))])
            x = torch.where(runs[:, None], y, x)
        text.append(int(model.logits(x[-1:]).argmax()))
        if text[-1] in model.config.eos_tokens:
            break
    return text[len(prompt) :], kept


def test_the_plain_reading_gives_the_same_tokens(tmp_path):
    model = toys.in_float64(MODEL)
    made, path = routers(model.config.layers, model.config.hidden_size), tmp_path / "routers"
    made.save(path)
    with LLM(MODEL, backend="torch", dtype="fp64", threads=1) as llm:
        asked = ("copy: Ana Bob", "add: 47 + 85", "sort: 3 1 2", "reverse: Ben Sam Art Ida")
        prompts = [llm.encode(text) for text in asked]
        wanted = [by_the_book(model, prompt, made, 10) for prompt in prompts]
        found = llm.complete(prompts, decoder=f"first(routers='{path}')", max_tokens=10)
    assert [one.token_ids for one in found] == [tokens for tokens, _ in wanted]
    assert len({tuple(kept) for _, kept in wanted}) > 1  # The layers depend on the prompt.
    assert all(1 < len(kept) < 6 for _, kept in wanted)


def test_with_all_layers_it_is_plain_decoding(of_toy):
    spec = f"first(routers='{of_toy}',threshold=0)"
    only = ("batch-of-16", "stop-tokens", "context-end", "constrained", "chunks-of-3",
            "prefix-cache", "log-probabilities")  # fmt: skip
    exact = partial(cases, guarantee="exact", kinds=("toy",), only=only)
    for case in exact(lambda: parse(spec)()):
        case.run()


def test_what_every_method_promises(of_toy):
    only = ("mixed-methods", "prefix-cache", "cancelled-neighbour", "chunks-of-1", "little-memory",
            "stop-strings", "context-end", "max-tokens")  # fmt: skip
    for case in cases(f"first(routers='{of_toy}')", kinds=("toy",), only=only):
        case.run()


def test_what_some_layers_computed_is_not_reused_by_others(of_toy):
    check_rows_are_its_own(f"first(routers='{of_toy}')", toy, requests())


def test_another_worker_goes_on_with_the_same_layers(of_toy):
    check_resumed(f"first(routers='{of_toy}')", toy, requests())


def test_which_layers_are_kept():
    made = routers(4, 3)
    entered = np.array([[1, 2, 3], [3, 2, 1], [1, 1, 1]], np.float32)
    for signs in np.ndindex(2, 2, 2):
        bias = np.where(signs, 40, -40).astype(np.float32)
        sure = replace(made, tensors={**made.tensors, "bias": bias})
        assert sure.layers(entered, 0.5) == (0, *(n + 1 for n in range(3) if signs[n]))
        assert sure.layers(7 * entered, 0.5) == sure.layers(entered, 0.5)
        assert sure.layers(entered, 0.0) == (0, 1, 2, 3)
    for sign in (1, -1):  # Large float32 inputs do not overflow.
        huge = replace(made, tensors={**made.tensors, "weight": np.full((3, 3), sign * 3e38, "f4")})
        with np.errstate(all="raise"):
            assert huge.layers(entered, 0.5) == ((0, 1, 2, 3) if sign > 0 else (0,))


def test_files_that_do_not_fit_are_refused(tmp_path, of_toy):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(of_toy.read_bytes()[:-4])
    thin = replace(routers(6, 192), tensors={"weight": np.zeros((5, 191)), "bias": np.zeros(5)})
    thin.save(tmp_path / "thin")
    replace(thin, facts={**thin.facts, "layers": 1}).save(tmp_path / "one")
    refused = {"": "train first", of_toy: "layers 2", damaged: "train it again",
               tmp_path / "thin": "wrong shape", tmp_path / "one": "one layer",
               tmp_path / "none": "readable file"}  # fmt: skip
    check_refused("first(routers='{}')", refused)
