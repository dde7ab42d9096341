"""Gemma 4's layers on the native core equal PyTorch's; other rows of a forward change no bit."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from naive import random_weights
from native_models import make

from paradecode.backends.interface import PAGE, Span
from paradecode.backends.native import _core
from paradecode.backends.native.backend import NativeBackend, NativeLogits
from paradecode.core.decoder import Denoise
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.gemma import gemma4_layers, wide_rope
from paradecode.models.mixture import Mixture
from paradecode.models.parts import Attention
from paradecode.models.weights import Tensor
from tiny_gemma import gemma_span

CANVAS = 9
CONFIG = ModelConfig(
    name="tiny", architecture="gemma4", vocab_size=301, hidden_size=52,
    stack=gemma4_layers(
        4, {1, 3}, Attention(6, 3, 12, rope=Rope(dim=12), window=20),
        Attention(6, 2, 40, rope=wide_rope(5e5, 40, 5), keys_as_values=True), 83,
        Mixture(8, 2, 40, normalised=True, scaled=True),
    ),
    context_length=512, norm_eps=1e-6, embed_factor=52**0.5, tied_head=True, softcap=25.0,
    canvas_length=CANVAS,
)  # fmt: skip
"""A model none of whose sizes is a multiple of the kernels' block sizes."""
TEXT = [(7 * i + 3) % 301 for i in range(45)]
OTHER = [(11 * i + 8) % 301 for i in range(23)]


def weights() -> dict[str, Tensor]:
    """Return weights with layer factors near 1; factors near 0 would make rounding look large."""
    found = random_weights(CONFIG)
    for at, name in enumerate(name for name in found if name.endswith((".scale", ".canvas_scale"))):
        factor = np.full(found[name].shape, 0.7 + 0.05 * (at % 13), np.float32)
        found[name] = replace(found[name], data=factor)
    return found


def made(**options: Any) -> NativeBackend:
    backend = NativeBackend(CONFIG, weights(), **options)
    backend.reserve(64)
    return backend


span = partial(gemma_span, hidden=(0, 1, 2, 3))


def noise(step: int) -> list[int]:
    return [(7 * i + 11 * step) % 301 for i in range(CANVAS)]


def values(logits: Any) -> np.ndarray:
    return logits.numpy() if isinstance(logits, NativeLogits) else np.asarray(logits.values)


def likely(logits: np.ndarray) -> np.ndarray:
    """Return the logits [K, V] without the tokens that the core leaves out of a guess."""
    below = logits.max(axis=1, keepdims=True) - logits
    found = logits.copy()
    for row, nats in zip(found, below, strict=True):
        bins = np.histogram(nats, np.arange(65))[0]
        left = np.cumsum((bins * np.exp(-np.arange(64)))[::-1])
        row[nats >= 64 - (left + len(row) * np.exp(-64) <= 1e-4).sum()] = -np.inf
    return found


def written(backend: Any, text: list[int], lot: int, guessed: Any = None) -> list[np.ndarray]:
    """Return the logits of a text fed ``lot`` rows at a time, then of three canvases after it.

    Args:
        guessed: replaces the model's own guess, if given.
    """
    rows: list[np.ndarray] = []
    for at in range(0, len(text), lot):
        rows.extend(values(backend.forward([span(text[at : at + lot], at)])[0].logits))
    found, guess = [np.stack(rows)], None
    for step in range(3):
        given = span(noise(step), len(text), Denoise(guess))
        logits = backend.forward([given])[0].logits
        found.append(values(logits))
        guess = logits.tempered(0.7)
        guess = guess if guessed is None else guessed(values(guess))
    return found


def test_text_and_canvases_are_as_in_pytorch() -> None:
    torch = pytest.importorskip("paradecode.backends.torch.backend")
    reference = torch.TorchBackend(CONFIG, weights(), dtype="fp64")
    reference.reserve(8)
    guesses: list[np.ndarray] = []

    def guessed(logits: np.ndarray) -> ArrayLogits:
        guesses.append(logits)
        return ArrayLogits(likely(logits))

    wanted = written(reference, TEXT, 45, guessed)
    # Each backend reads the same guesses; otherwise one step's rounding would grow in the next
    # step.
    given = iter(guesses)
    found = written(
        made(dtype="f32", kv_dtype="f32"), TEXT, 45,
        lambda logits: NativeLogits.from_array(next(given)),
    )  # fmt: skip
    for ours, theirs in zip(found, wanted, strict=True):
        assert np.abs(ours - theirs).max() < 3e-4
        assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).all()
    for dtype, most in (("bf16", 0.2), ("q8", 2.0)):
        found = written(made(dtype=dtype), TEXT, 45)
        # Compare only most rows: where two experts nearly tie, rounding may choose the other
        # expert.
        assert np.median(np.abs(found[0] - wanted[0]).max(axis=1)) < most


@pytest.mark.parametrize("part", ["scale", "guess.gate", "after_experts", "after_mlp", "k_norm"])
def test_every_part_counts(part: str) -> None:
    """A changed weight changes the logits, so the comparison above can fail.

    The weights that read a guess take effect from the second canvas on.
    """
    other = weights()
    usual = written(made(dtype="f32"), TEXT, 45)
    for name in other:
        if name.endswith(part) and "canvas" not in name and "router" not in name:
            changed = other[name].data * 1.1
            other[name] = replace(other[name], data=changed.astype(np.float32))
    backend = NativeBackend(CONFIG, other, dtype="f32")
    backend.reserve(8)
    found = written(backend, TEXT, 45)
    text = [np.abs(a - b).max() > 1e-2 for a, b in zip(usual, found, strict=True)]
    assert text == [part != "guess.gate", part != "guess.gate", True, True]


@pytest.mark.parametrize("dtype", ["q4", "q8", "f32"])
def test_bits_depend_on_what_a_row_sees(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = written(made(dtype=dtype, threads=2), TEXT, 45)
    for lot, threads in ((1, 1), (7, 2), (45, 3)):
        for ours, other in zip(written(made(dtype=dtype, threads=threads), TEXT, lot),
                               usual, strict=True):  # fmt: skip
            np.testing.assert_array_equal(ours, other)
    for isa in _core.available_isas():
        monkeypatch.setenv("PARADECODE_ISA", isa)
        for ours, other in zip(written(made(dtype=dtype), TEXT, 45), usual, strict=True):
            np.testing.assert_array_equal(ours, other)


def test_neighbours_change_no_bit() -> None:
    """Canvases with and without a guess, and a text, give the same bits alone and together."""
    backend = made(dtype="q8")
    backend.forward([span(TEXT, 0), span(OTHER, 0, first=8)])
    guess = backend.forward([span(noise(0), 45, Denoise())])[0].logits.tempered(0.5)
    spans = [
        span(noise(1), 45, Denoise(guess)), span(noise(2), 23, Denoise(), first=8),
        span(OTHER, 0, first=16), span([4, 4, 9], 0, first=24),
    ]  # fmt: skip
    alone = [backend.forward([each])[0] for each in spans]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        together = backend.forward([spans[i] for i in order])
        for i, result in zip(order, together, strict=True):
            np.testing.assert_array_equal(values(result.logits), values(alone[i].logits))
            for layer, states in result.hidden.items():
                np.testing.assert_array_equal(states, alone[i].hidden[layer])


def test_a_guess_counts_by_its_probabilities() -> None:
    """Flat, certain and changed guesses give the same logits as in PyTorch."""
    torch = pytest.importorskip("paradecode.backends.torch.backend")
    reference = torch.TorchBackend(CONFIG, weights(), dtype="fp64")
    backend = made(dtype="f32", kv_dtype="f32")
    random = np.random.default_rng(3)
    reference.reserve(8)
    for each in (reference, backend):
        each.forward([span(TEXT, 0)])
    for scale in (0.0, 1.0, 8.0, 40.0):
        raw = (scale * random.standard_normal((CANVAS, 301))).astype(np.float32)
        bias = [(np.array([5, 7], np.int32), np.array([-np.inf, 3.0], np.float32)), *[None] * 8]
        changed = NativeLogits.from_array(raw).with_bias(bias)
        said = likely(values(changed))
        assert (np.isneginf(said).sum() > 9) == (scale > 2)
        wanted, found = (
            values(each.forward([span(noise(1), 45, Denoise(guess))])[0].logits)
            for each, guess in ((reference, ArrayLogits(said)), (backend, changed))
        )
        assert np.abs(wanted - found).max() < 6e-4


def test_a_damaged_guess_harms_its_own_rows() -> None:
    """NaN stays in its own row if rows do not see one another."""
    backend = made(dtype="q8")
    backend.forward([span(TEXT, 0), span(OTHER, 0, first=8)])
    raw = np.zeros((CANVAS, 301), np.float32)
    good = span(noise(1), 23, Denoise(NativeLogits.from_array(raw)), first=8)
    usual = values(backend.forward([good])[0].logits)
    for bad in (np.nan, np.inf, -np.inf):
        broken = raw.copy()
        broken[3, 17 if bad > 0 else slice(None)] = bad
        alone = replace(span(noise(1), 45, Denoise(NativeLogits.from_array(broken))),
                        mask=np.eye(CANVAS, dtype=bool))  # fmt: skip
        first, second = backend.forward([alone, good])
        lost = np.isnan(values(first.logits)).all(axis=1)
        assert lost.tolist() == [row == 3 for row in range(CANVAS)]
        np.testing.assert_array_equal(values(second.logits), usual)


def test_slots_are_copied_in_layers_of_both_kinds() -> None:
    backend = made(dtype="q8")
    backend.forward([span(TEXT, 0)])
    slots = np.arange(45, dtype=np.int64)
    backend.copy(slots, slots + 8 * PAGE)
    here, there = (backend.forward([span(noise(0), 45, Denoise(), first=at)])[0] for at in (0, 8))
    np.testing.assert_array_equal(values(here.logits), values(there.logits))
    # Bytes of float16: three heads of 12 numbers, values padded to 16; and two of 40, padded to 48.
    assert backend.slot_bytes == {20: 2 * 2 * 3 * (12 + 16), 0: 2 * 2 * 2 * (40 + 48)}


def one(token: int) -> Span:
    row = span([token], 45)
    return replace(row, slots=np.full(1, -1, np.int32), hidden=())


def best_only(backend: NativeBackend, token: int) -> _core.LogitRows:
    """Return logits of which only the best one is known."""
    return backend._model().forward([one(token)], None, only_best=True)[0][0]


def test_the_screened_head_knows_the_cap_of_the_logits() -> None:
    backend = made(dtype="q8")
    backend.forward([span(TEXT, 0)])
    core = backend._model()
    for token in range(40):
        best = best_only(backend, token)
        whole = core.forward([one(token)], None)[0][0]
        assert best.argmax().tolist() == whole.argmax().tolist()


def test_what_is_no_canvas_is_refused() -> None:
    backend = made(dtype="q8")
    backend.forward([span(TEXT, 0)])
    guess = backend.forward([span(noise(0), 45, Denoise())])[0].logits
    with pytest.raises(InvalidInput, match="denoise"):
        backend.forward([span(noise(0)[:3], 45, Denoise(guess))])
    with pytest.raises(InvalidInput, match="logits of this backend"):
        backend.forward([span(noise(0), 45, Denoise(ArrayLogits(values(guess))))])
    states = np.zeros((CANVAS, 52), np.float32)
    with pytest.raises(InvalidInput, match="denoise"):
        backend.forward([replace(span(noise(0), 45, Denoise()), embeddings=states)])
    best = best_only(backend, 1)
    with pytest.raises(InvalidInput, match="all logits"):
        backend._model().forward([one(1)], None, canvases={0: best})
    plain = uniform("plain", "llama", 301, 52, 2, 6, 3, 12, 83, context_length=512)
    with pytest.raises(InvalidInput, match="does not refine"):
        make(plain, dtype="q8").forward([span([1, 2], 0, Denoise())])
    with pytest.raises(InvalidInput, match="canvases"):
        backend._model().forward([span([1], 0)], None, canvases={1: None})
