"""The tiny models' tokenizer keeps any text; its digits are single and its words are whole."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.models.chat import find_template
from paradecode.models.folder_tokenizer import read_tokenizer
from paradecode.models.tokenizer import Tokenizer
from paradecode_lab.measure.tasks.tasks import TASKS
from paradecode_lab.training.diffusion.vocabulary import (
    ASSISTANT,
    END,
    MASK,
    PAD,
    SPECIAL,
    USER,
    build_tokenizer,
    save_tokenizer,
    spaced_words,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(build_tokenizer(), place)
    return place


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return read_tokenizer(folder)[0]


def test_it_is_small_and_always_the_same(tokenizer):
    assert tokenizer.vocab_size < 600
    assert build_tokenizer().to_str() == build_tokenizer().to_str()


def test_control_tokens(tokenizer):
    named = dict(zip(SPECIAL, (END, MASK, PAD, USER, ASSISTANT)))
    assert tokenizer.control == named
    assert tokenizer.eos == END
    assert tokenizer.encode("<|mask|>", parse_special=False) != [MASK]


@given(st.text(max_size=40))
def test_any_text_survives(tokenizer, text):
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == text


def test_texts_of_tasks_are_words_and_single_digits(tokenizer):
    random = Random(11)
    for task in TASKS:
        for _ in range(50):
            instance = task.draw(random, held_out=True)
            for text in (instance.prompt, instance.answer):
                ids = tokenizer.encode(text)
                assert tokenizer.decode(ids) == text
                tokens = [tokenizer.token(index) for index in ids]
                assert sum(token.lstrip("Ġ").isdigit() for token in tokens) == sum(
                    map(str.isdigit, text)
                )
                assert not any(token.isalpha() and len(token) < 2 and token != "Ġa"
                               for token in tokens if token.isascii())  # fmt: skip


def test_the_chat_template_writes_what_training_reads(tokenizer, folder):
    template = find_template(read_tokenizer(folder)[1], tokenizer)
    ids = template.encode(tokenizer, [{"role": "user", "content": "sort: 3 1 2"}])
    assert ids == [USER, *tokenizer.encode("sort: 3 1 2"), ASSISTANT]
    talk = [
        {"role": "user", "content": "copy: 1"}, {"role": "assistant", "content": "1"},
        {"role": "user", "content": "copy: 2"},
    ]  # fmt: skip
    parts = [tokenizer.encode(text) for text in ("copy: 1", "1", "copy: 2")]
    assert template.encode(tokenizer, talk) == [
        USER, *parts[0], ASSISTANT, *parts[1], END, USER, *parts[2], ASSISTANT,
    ]  # fmt: skip


def test_words_with_and_without_a_space_are_found():
    made = build_tokenizer()
    pairs = [(made.id_to_token(a), made.id_to_token(b)) for a, b in spaced_words(made)]
    assert all(spaced == f"Ġ{plain}" for spaced, plain in pairs)
    assert {("ĠAda", "Ada"), ("Ġ7", "7"), ("Ġ+", "+")} <= set(pairs)
