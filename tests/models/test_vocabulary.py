"""Tokens of two tokenizers are matched by their text."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from paradecode.core.errors import InvalidInput
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.vocabulary import match, spelling

TEXTS = (
    "the cat sat on the mat and the cat ran over the map of the land where rain and sand met",
    "she sells sea shells on the sea shore, and he sells seeds in the shed near the mat",
)


def byte_level(text: str, size: int, special: str = "<|end|>") -> Tokenizer:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([text] * 3, trainer)
    return Tokenizer(library, eos=0)


def spelled(tokenizer: Tokenizer, ids: np.ndarray) -> bytes:
    return b"".join(spelling(tokenizer, int(token)) for token in ids)


TARGET, DRAFT = byte_level(TEXTS[0], 300), byte_level(TEXTS[1], 290)


def test_equal_vocabularies_need_no_translation():
    assert match(TARGET, TARGET, TARGET.vocab_size, TARGET.vocab_size) is None


def test_every_target_token_is_spelled():
    found = match(TARGET, DRAFT, TARGET.vocab_size, DRAFT.vocab_size)
    assert found is not None
    for token in range(TARGET.vocab_size):
        pieces = found.translate(np.array([token]))
        assert spelled(DRAFT, pieces) == spelling(TARGET, token)


def test_common_tokens_go_both_ways():
    found = match(TARGET, DRAFT, TARGET.vocab_size, DRAFT.vocab_size)
    assert found is not None
    common = np.flatnonzero(found.to_target >= 0)
    assert 257 <= len(common) < DRAFT.vocab_size  # The bytes and the control token, at least.
    for token in common.tolist():
        assert found.translate(found.to_target[[token]]).tolist() == [token]
        assert spelling(TARGET, int(found.to_target[token])) == spelling(DRAFT, token)


def test_texts_keep_their_bytes_in_the_drafts_spelling():
    found = match(TARGET, DRAFT, TARGET.vocab_size, DRAFT.vocab_size)
    assert found is not None
    text = "the sea, où le chat 🐈 sat"
    ids = np.array(TARGET.encode(text))
    assert spelled(DRAFT, found.translate(ids)).decode() == text


def test_padded_heads_and_unknown_control_tokens_have_a_filler():
    other = byte_level(TEXTS[1], 290, "<|stop|>")
    found = match(TARGET, other, 320, 310)
    assert found is not None
    assert (found.to_target[290:] == -1).all()
    assert found.to_target[0] == -1  # <|stop|> is not <|end|>.
    for token in (0, 319):
        assert len(found.translate(np.array([token]))) == 1


def test_vocabularies_with_nothing_in_common_are_refused():
    library = Library(models.WordLevel({"<unk>": 0, "ä" * 7: 1, "ö" * 9: 2}, unk_token="<unk>"))
    library.decoder = decoders.ByteLevel()
    with pytest.raises(InvalidInput, match="draft_model"):
        match(TARGET, Tokenizer(library), TARGET.vocab_size, 3)
