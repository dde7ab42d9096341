"""The toy model gives the same logits cached, in chunks, in trees and from embeddings."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from driving import LOOP, PROMPT, ToyText, greedy

import spans
from paradecode.backends.interface import Span
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import Half
from paradecode.testing.reference import fresh_logits
from paradecode.testing.toy import LetterText, ToyBackend


def span(tokens: tuple[int, ...], start: int = 0, **changes: object) -> Span:
    last = np.array([len(tokens) - 1], np.int32)
    return replace(spans.span((4, 2, 7), tokens, start, logits=last), **changes)


def logits(toy: ToyBackend, one: Span) -> np.ndarray:
    return toy.forward([one])[0].logits.values  # type: ignore[attr-defined]


@pytest.fixture
def toy() -> ToyBackend:
    backend = ToyBackend()
    backend.reserve(8)
    return backend


def test_one_forward_equals_the_definition(toy: ToyBackend) -> None:
    wanted = toy.plain_logits(np.array(PROMPT))
    assert (fresh_logits(toy, PROMPT).values[0] == wanted).all()  # type: ignore[attr-defined]
    assert (logits(toy, span(PROMPT))[0] == wanted).all()


def test_chunks_equal_the_definition(toy: ToyBackend) -> None:
    toy.forward([span(PROMPT[:20])])
    assert (logits(toy, span(PROMPT[20:], 20))[0] == toy.plain_logits(np.array(PROMPT))).all()


def test_moved_rows_equal_the_definition(toy: ToyBackend) -> None:
    slots = np.arange(3, 3 + 20, dtype=np.int32)
    toy.forward([span(PROMPT[:20], slots=slots)])
    pages = np.array([4, 2, 7])
    at = np.arange(20)
    toy.copy(pages[slots // 16] * 16 + slots % 16, pages[at // 16] * 16 + at % 16)
    assert (logits(toy, span(PROMPT[20:], 20))[0] == toy.plain_logits(np.array(PROMPT))).all()


@pytest.mark.parametrize("mistake", [
    {"context": 19}, {"visible": np.arange(1, 20, dtype=np.int32)},
    {"positions": np.arange(21, 38, dtype=np.int32)}, {"mask": np.eye(17, dtype=bool)},
    {"pages": np.array([2, 4, 7], np.int32)}, {"layers": (1,)},
    {"layers": (0, Half(1, "attention"))}, {"layers": (0, Half(1, "mlp"))},
],
    ids=["context", "visible", "positions", "mask", "pages", "layers", "no-mlp", "no-attention"]
)  # fmt: skip
def test_every_mistake_shows(toy: ToyBackend, mistake: dict[str, object]) -> None:
    toy.forward([span(PROMPT[:20])])
    right = logits(toy, span(PROMPT[20:], 20))
    assert (logits(toy, span(PROMPT[20:], 20, **mistake)) != right).any()


def test_embeddings_and_resumed_states_equal_tokens(toy: ToyBackend) -> None:
    tokens = np.array(LOOP, np.int32)
    right = logits(toy, span(LOOP))
    assert (logits(toy, span(LOOP, embeddings=toy.embed(tokens))) == right).all()
    first = toy.forward([span(LOOP, layers=(0,), hidden=(0,))])[0].hidden[0]
    assert (logits(toy, span(LOOP, layers=(1,), resume=first)) == right).all()


def test_bad_spans_are_refused(toy: ToyBackend) -> None:
    with pytest.raises(InvalidInput):
        toy.forward([span((99,))])
    with pytest.raises(InvalidInput):
        toy.forward([span((5,), pages=np.array([8], np.int32))])


def test_texts_repeat_but_not_for_ever() -> None:
    output = greedy(LOOP, 80)
    usual = sum(b == a // 5 * 5 + (a + 1) % 5 for a, b in pairwise(output))
    assert 40 < usual < 76


def test_streams_give_the_same_text() -> None:
    for stream in (ToyText(), LetterText()):
        assert "".join(stream.push(token) for token in (0, 1, 2)) + stream.flush() == "abc"
