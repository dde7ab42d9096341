"""Forwards of some layers, hidden states as output and input, and embeddings, in each backend."""

from dataclasses import replace

import numpy as np
import pytest
from house import causal, ints, numbers

from paradecode.core.layers import Half


def test_hidden_outputs(house):
    text = house.text(19)
    states = house.naive.hidden(text)
    span = replace(causal(house.pages(19), text, 0, 19), hidden=(0, 2))
    result = house.backend.forward([span])[0]
    assert set(result.hidden) == {0, 2}
    for layer, got in result.hidden.items():
        # States keep the model's precision, so forwards that continue from them are equal.
        assert got.dtype == (np.float64 if house.name == "torch" else np.float32)
        house.close(got, states[layer + 1])


def test_spans_may_ask_for_different_hidden_layers(house):
    text = house.text(7)
    one = replace(causal(house.pages(7), text, 0, 7), hidden=(1,))
    two = causal(house.pages(7), text, 0, 7)
    results = house.backend.forward([one, two])
    assert [set(result.hidden) for result in results] == [{1}, set()]


def test_resume_above_a_subset_is_the_full_run(house):
    """Layer 0, then layers 1 and 2 from its output, equal the full model."""
    text = house.text(23)
    pages = house.pages(23)
    lower = replace(causal(pages, text, 0, 23), layers=(0,), hidden=(0,))
    early = house.backend.forward([lower])[0]
    house.close(numbers(early.logits), house.naive.logits(text, layers=[0]))
    resumed = replace(causal(pages, text, 0, 23), layers=(1, 2), resume=early.hidden[0])
    got = house.run(resumed)[0]
    house.close(got, house.naive.logits(text, embeddings=early.hidden[0], layers=[1, 2]))
    np.testing.assert_allclose(got, house.naive.logits(text), rtol=0, atol=1e-3)
    # Together these forwards filled every layer, so decoding continues as after one full forward.
    after = house.run(causal(pages, np.append(text, 4).astype(np.int32), 23, 24))[0]
    np.testing.assert_allclose(after, house.naive.logits([*text, 4])[23:], rtol=0, atol=1e-3)


def test_skipped_layers(house):
    """A forward of some layers in any order, or of none, equals the reference with these layers."""
    text = house.text(15)
    for layers in ((0, 2), (2, 0), ()):
        span = replace(causal(house.pages(15), text, 0, 15), layers=layers)
        house.close(house.run(span)[0], house.naive.logits(text, layers=layers))


SOME = (0, Half(1, "mlp"), Half(2, "attention"))


@pytest.mark.parametrize("layers", [SOME, SOME[::-1], (Half(1, "attention"),), (Half(2, "mlp"),)])
def test_halves_of_layers(house, layers):
    text = house.text(15)
    states = house.naive.hidden(text, layers=layers)
    outputs = {getattr(each, "layer", each): x for each, x in zip(layers, states[1:], strict=True)}
    span = replace(causal(house.pages(15), text, 0, 15), layers=layers, hidden=tuple(outputs))
    result = house.backend.forward([span])[0]
    house.close(numbers(result.logits), house.naive.logits(text, layers=layers))
    for layer, got in result.hidden.items():  # What its half puts out.
        house.close(got, outputs[layer])
    # Run the layers again in two forwards, the second over what the first has stored.
    first = replace(causal(span.pages, text, 0, 9), layers=layers)
    second = replace(causal(span.pages, text, 9, 15), layers=layers)
    house.run(first)
    house.close(house.run(second)[0], house.naive.logits(text, layers=layers)[9:])


def test_two_halves_are_a_layer(house):
    text = house.text(11)
    split = (Half(0, "attention"), Half(0, "mlp"), 1, Half(2, "attention"), Half(2, "mlp"))
    whole = causal(house.pages(11), text, 0, 11)
    halved = replace(whole, pages=house.pages(11), layers=split, hidden=(0,))
    one, two = house.backend.forward([replace(whole, hidden=(0,))])[0], None
    two = house.backend.forward([halved])[0]
    assert (numbers(one.logits) == numbers(two.logits)).all()
    assert (one.hidden[0] == two.hidden[0]).all()  # Behind the second of its halves.


def test_only_attention_stores_keys_and_values(house):
    text, other = house.text(8), house.text(8, 1)
    pages = house.pages(8)
    house.prefill(pages, text)
    last = np.append(text, 5).astype(np.int32)
    unstored = replace(causal(pages, last, 8, 9), slots=ints([-1]))
    before = house.run(unstored)[0]
    mlps = tuple(Half(layer, "mlp") for layer in range(3))
    house.run(replace(causal(pages, other, 0, 8), layers=mlps))
    assert (house.run(unstored)[0] == before).all()
    house.run(replace(causal(pages, other, 0, 8), layers=(Half(1, "attention"),)))
    assert (house.run(unstored)[0] != before).any()


def test_embeddings_equal_tokens(house):
    text = house.text(14)
    rows = house.naive.w["embed"][text].astype(np.float32)
    span = replace(causal(house.pages(14), text, 0, 14), tokens=ints([]), embeddings=rows)
    house.close(house.run(span)[0], house.naive.logits(text))
    other = replace(span, embeddings=rows[::-1], pages=house.pages(14))
    house.close(house.run(other)[0], house.naive.logits(text[::-1]))
