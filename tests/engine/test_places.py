"""Tree rows at chosen positions get the right logits, and nothing of them is stored."""

import numpy as np
import pytest
from driving import LOOP, greedy, served, toy_engine

from paradecode.backends.interface import Span
from paradecode.core.decoder import Forward, Verdict
from paradecode.core.errors import DecoderError
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import ToyBackend, toy_config


def apart(tokens: list[int], places: list[int]) -> np.ndarray:
    """Return the logits of a causal forward over rows at any positions, without a cache."""
    count, model = len(tokens), ToyBackend(toy_config(masked=True))
    none = np.full(count, -1, np.int32)
    at, ids = np.array(places, np.int32), np.array(tokens, np.int32)
    span = Span(np.empty(0, np.int32), ids, at, none, 0, np.arange(count, dtype=np.int32))
    return np.array(model.forward([span])[0].logits.values)


@pytest.mark.parametrize("chunk", [3, 64])
def test_they_see_the_text_and_each_other_in_order(chunk: int) -> None:
    said: list[np.ndarray] = []

    def decode(seq):
        places = np.array([25, 22, 30], np.int32)
        while not seq.finished:
            chain = TokenTree.chain([9, 8, 7])
            reply = yield Forward(seq.pending, tree=chain, places=places)
            text = seq.tokens.tolist()
            wanted = apart([*text, 9, 8, 7], [*range(len(text)), *places.tolist()])
            said.append(reply.logits.values - wanted[-4:])
            token = int(reply.logits.argmax()[0])
            seq.commit(Verdict([token], [0], reply.logits))

    models = {"target": ToyBackend(toy_config(masked=True))}
    made = served(decode, engine=toy_engine(models, step_tokens=chunk, draft_tokens=0))
    assert made.error is None
    assert len(said) == 12
    assert all((one == 0).all() for one in said)
    assert (made.stats.drafts, made.rows) == (0, len(LOOP) + 11 + 12 * 3)


def test_a_token_at_another_place_is_not_the_token_of_the_text() -> None:
    """A row at another position is not reused for an equal committed token."""
    right = greedy()

    def decode(seq):
        while not seq.finished:
            ahead = right[len(seq.tokens) - len(LOOP) :][:3]
            places = len(seq.tokens) + 5 + np.arange(len(ahead), dtype=np.int32)
            reply = yield Forward(seq.pending, tree=TokenTree.chain(ahead), places=places)
            seq.commit(coupled(seq, TokenTree.chain([]), reply))

    made = served(decode)
    assert made.output == right
    assert made.forwards == len(right)


@pytest.mark.parametrize(
    ("places", "wrong"), [([4], "one entry for each"), ([4, 500], "past the model's context")]
)
def test_wrong_places_are_refused(places: list[int], wrong: str) -> None:
    def decode(seq):
        yield Forward(seq.pending, tree=TokenTree.chain([5, 6]), places=np.array(places, np.int32))

    made = served(decode)
    assert isinstance(made.error, DecoderError)
    assert wrong in str(made.error)
