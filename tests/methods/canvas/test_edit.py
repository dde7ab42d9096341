"""Compares the sampler of LLaDA2.1 with its algorithm, written over forwards without a cache."""

import numpy as np
import pytest
from canvases import EOS, OneForward, run, toy
from expert_folders import expert_model

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import parse
from paradecode.models.config import ModelConfig

PROMPTS = ([5, 17, 40, 8, 9, 33, 2], [70] * 8, [11, 12, 13, 14, 15, 16, 17, 18, 19])


@pytest.fixture(scope="module")
def model() -> tuple[Backend, ModelConfig]:
    pytest.importorskip("torch")
    config, weights = expert_model("llada2")
    return open_backend("torch", config, weights, dtype="fp64", threads=1), config


def by_the_book(model, prompt, length, sure, least, after):
    """Return the tokens, the number of forwards and the corrections of the released loop."""
    backend, config = model
    mask, size = config.mask_token, config.block_length
    assert mask is not None
    end = -(-(len(prompt) + length) // size) * size
    row = np.array([*prompt, *[mask] * (end - len(prompt))])
    forwards = corrections = 0
    for start in range(len(prompt) // size * size, end, size):
        block = np.arange(start, start + size)
        free = block >= len(prompt)
        again = 0
        while True:
            masked = row[block] == mask
            again += not masked.any()
            if again > after:
                break
            asked = OneForward(row[: start + size].tolist(), block.tolist())
            run(backend, lambda asked=asked: asked)
            forwards += 1
            logits = np.asarray(asked.logits, np.float64)
            logits[:, mask] = -np.inf
            best = logits.argmax(1)
            chance = 1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)
            commit = masked & (chance > sure)
            if masked.any() and not commit.any():
                commit[np.where(masked, chance, -1).argmax()] = True
            edit = ~masked & free & (chance > least) & (best != row[block])
            row[block[commit | edit]] = best[commit | edit]
            corrections += edit.sum()
            if not masked.any() and not edit.any():
                break
    return row[len(prompt) : len(prompt) + length].tolist(), forwards, int(corrections)


@pytest.mark.first(8)
@pytest.mark.parametrize("cache", ["none", "prefix"])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    ("sure", "least", "after"), [(0.95, 0.9, 16), (0.5, 0.3, 16), (0.3, 0.0, 3), (0.3, 0.1, 0)]
)
def test_the_released_loop(model, prompt, sure, least, after, cache) -> None:
    tokens, forwards, corrections = by_the_book(model, prompt, 15, sure, least, after)
    spec = f"edit(threshold={sure},least={least},after={after},cache={cache})"
    made = run(model[0], spec, prompt, 15)
    assert made.tokens[len(prompt) :].tolist() == tokens
    assert len(made.trace) == forwards
    assert sum(len(step.canvas.revoked) for step in made.trace) == corrections
    if least < 0.9 and after:
        assert corrections, "this run tests nothing"


def test_without_corrections_it_is_the_threshold(model) -> None:
    usual = run(model[0], "threshold(threshold=0.4)", PROMPTS[0], 15)
    made = run(model[0], "edit(threshold=0.4,least=1,after=0)", PROMPTS[0], 15)
    assert made.tokens.tolist() == usual.tokens.tolist()
    assert len(made.trace) == len(usual.trace)


@pytest.mark.parametrize("values", [{"frequency_penalty": 2.0}, {"repetition_penalty": 1.3}])
def test_what_was_shown_stays(values: dict[str, float]) -> None:
    """Text that was shown is not corrected.

    With `lead` the first position of a block is a window of its own, and is shown alone.
    """
    spec = "edit(blocks=lead,least=0.0)"
    made = run(toy("block-shift"), spec, (8, 5, 6, 7), 40, **values)
    shown = corrections = 0
    for step in made.trace:
        assert all(at >= shown for at in step.canvas.revoked)
        corrections += len(step.canvas.revoked)
        shown += len(step.tokens)
    assert shown == 40
    assert corrections, "this run tests nothing"


@pytest.mark.parametrize("after", [0, 3, 40])
def test_a_block_is_corrected_as_often_as_asked(after: int) -> None:
    """A block is corrected at most ``after`` times.

    The penalty applies to the token that is decided, so another token is always better.
    """
    spec = f"edit(block_length=1,least=0.0,after={after})"
    made = run(toy("full"), spec, (8, 5), 12, presence_penalty=100.0)
    assert len(made.trace) == 12 * (after + 1)


def test_its_own_names() -> None:
    spec = parse({"method": "edit", "editing_threshold": 0.5, "max_post_steps": 3})
    assert str(spec) == "edit(least=0.5,after=3)"
    with pytest.raises(InvalidInput, match="least"):
        parse("edit(least=2)")


def test_an_end_of_text_ends_it(model) -> None:
    made = run(
        model[0], "edit(threshold=0.3,least=0.1)", PROMPTS[0], 40, ignore_eos=False,
        logit_bias={0: 6.0},
    )  # fmt: skip
    assert made.tokens[-1] in (0, EOS) or len(made.tokens) == len(PROMPTS[0]) + 40
