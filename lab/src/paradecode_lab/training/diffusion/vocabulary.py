"""The tiny models' tokenizer: a token for each word of the tasks, each digit and each byte."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from paradecode.models.text_stream import byte_characters
from paradecode_lab.measure.tasks import words
from paradecode_lab.measure.tasks.tasks import TASKS

END, MASK, PAD, USER, ASSISTANT = range(5)
SPECIAL = ("<|end|>", "<|mask|>", "<|pad|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' + message['content'] + '<|end|>' if message['role'] == 'assistant'"
    " else '<|user|>' + message['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SAMPLES = 400
"""Number of instances of each task whose words enter the vocabulary."""


def build_tokenizer() -> Any:
    """Build a ``tokenizers.Tokenizer``, the same one on every machine.

    Decoding an encoded text gives the text back, because unknown words become bytes. A word with a
    space before it has its own token, as in other byte-level vocabularies.
    """
    single = sorted(byte_characters(), key=byte_characters().__getitem__)
    ordered = [*SPECIAL, *single, *sorted(_pieces() - set(single))]
    vocabulary = {piece: index for index, piece in enumerate(ordered)}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = _splitter()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer


def _splitter() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" ?[0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


@cache
def _pieces() -> frozenset[str]:
    """Return the words of all tasks."""
    splitter = _splitter()
    pools = (words.NAMES, words.CITIES, words.JOBS, words.THINGS, words.DIGITS)
    texts = [f"{word} {word}" for pool in pools for word in pool]
    random = Random(0)
    for task in TASKS:
        for _ in range(SAMPLES):
            instance = task.draw(random, held_out=False)
            texts += [instance.prompt, instance.answer]
    return frozenset(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))


def spaced_words(tokenizer: Any) -> list[tuple[int, int]]:
    """Return (id with a space before it, id without) for each word that has both ids.

    Digits and other signs count as words.
    """
    ids: dict[str, int] = tokenizer.get_vocab()
    return [
        (ids[word], ids[word[1:]]) for word in sorted(ids) if word[0] == "Ġ" and word[1:] in ids
    ]


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[END], "pad_token": SPECIAL[PAD], "mask_token": SPECIAL[MASK]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
