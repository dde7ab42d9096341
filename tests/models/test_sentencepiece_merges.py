"""Merges that are left out are never joined, in any vocabulary and text."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from paradecode.models import sentencepiece_merges
from paradecode.models.sentencepiece_merges import merges_of


def every_pair(pieces: list[str], scores: np.ndarray) -> list[tuple[str, str]]:
    """Return a merge for any two pieces whose union is a piece, in order of score."""
    place = {piece: index for index, piece in enumerate(pieces)}
    found = [
        (-scores[index], place[piece[:cut]], place[piece[cut:]])
        for piece, index in place.items()
        for cut in range(1, len(piece))
        if piece[:cut] in place and piece[cut:] in place
    ]
    return [(pieces[left], pieces[right]) for _, left, right in sorted(found)]


def drawn(random: np.random.Generator, letters: str, count: int, most: int) -> list[str]:
    words = ("".join(random.choice([*letters], random.integers(1, most + 1))) for _ in range(count))
    return [*dict.fromkeys([*letters, *words])]


@pytest.mark.parametrize(("letters", "most"), [("ab", 7), ("a", 12), ("ab▁é😀", 5), ("abc", 9)])
def test_left_out_merges_change_no_text(letters, most, monkeypatch):
    """The vocabularies are random, so parts often score worse than what is made of them."""
    monkeypatch.setattr(sentencepiece_merges, "_MOST", 40)  # Lengths are handled in several parts.
    random, fewer = np.random.default_rng(most), 0
    for _ in range(60):
        pieces = drawn(random, letters, int(random.integers(2, 150)), most)
        scores = random.integers(0, random.choice([5, 1000]), len(pieces)).astype(np.float64)
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        every, some = every_pair(pieces, scores), merges_of(pieces, scores)
        assert some == [pair for pair in every if pair in {*some}]
        fewer += len(every) - len(some)
        whole, short = (Tokenizer(models.BPE(vocabulary, pairs)) for pairs in (every, some))
        for text in drawn(random, letters, 30, 60):
            assert short.encode(text).ids == whole.encode(text).ids
    assert fewer >= 50 * (len(letters) - 1)


def test_a_trained_vocabulary_has_one_merge_for_each_piece():
    """A pair is never joined if another one comes sooner, or if its parts never meet."""
    pieces = [*"▁the", "▁t", "th", "the", "▁th", "▁the"]
    merges = [("▁", "t"), ("t", "h"), ("th", "e"), ("▁t", "h"), ("▁th", "e")]
    assert merges_of(pieces, -np.arange(9.0)) == merges


def test_no_pieces():
    assert merges_of([], np.empty(0)) == []
