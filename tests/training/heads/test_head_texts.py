"""What heads are trained on: the model's own texts, and its states at them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.measure.prompts import load_prompts
from tiny_folder import write_folder

torch = pytest.importorskip("torch")

# These need PyTorch themselves.
from paradecode.training.heads.data import HeadData, make_data  # noqa: E402
from paradecode.training.heads.features import Features  # noqa: E402
from paradecode.training.heads.initial import common_tokens  # noqa: E402
from paradecode.training.heads.prompts import MeasuredPrompts, task_prompts  # noqa: E402
from paradecode.training.heads.texts import (  # noqa: E402
    HeadText,
    TextSource,
    kept_states,
    read_texts,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_states_are_the_same_from_the_cache_and_computed_again(llm, data, tmp_path):
    kept = Features(llm, data.texts[:70], (0, 1), tmp_path / "a", 1e9)
    kept.fill(lambda *_: None)
    assert len(list((tmp_path / "a").iterdir())) == 2
    fresh = Features(llm, data.texts[:70], (0, 1), tmp_path / "b", 0)
    for one, other in zip(kept.of([0, 69, 5]), fresh.of([0, 69, 5])):
        assert np.array_equal(one, other)
    row = 2 * 2 * llm.config.hidden_size
    first = sum(len(text.tokens) - 1 for text in data.texts[:64]) * row
    half = Features(llm, data.texts[:70], (0, 1), tmp_path / "c", first)
    half.fill(lambda *_: None)
    assert [file.name for file in (tmp_path / "c").iterdir()] == ["000000.npy"]
    assert np.array_equal(half.of([69])[0], kept.of([69])[0])


def test_states_of_more_layers_serve_too(llm, data, tmp_path):
    source = HeadData(tmp_path, data.texts[:70], 0)
    last = llm.config.layers - 1
    kept = source.features(llm, (1, 3, last), 1e9, lambda *_: None)
    again = source.features(llm, (last,), 1e9, lambda *_: None)
    assert again.layers == kept.layers
    assert np.array_equal(again.of([3])[0], kept.of([3])[0])
    assert source.features(llm, (0, last), 1e9, lambda *_: None).layers == (0, last)
    other = HeadData(tmp_path, data.texts[1:70], 0)
    assert other.features(llm, (last,), 1e9, lambda *_: None).layers == (last,)


def test_states_are_kept_while_the_target_writes(llm, source, data, tmp_path):
    layers = (0, llm.config.layers - 1)
    row = 2 * len(layers) * llm.config.hidden_size
    room = 40 * 40 * row  # Of the first of several rounds only.
    written = make_data(llm, source, tmp_path, lambda *_: None, layers, room)
    assert [t.tokens.tolist() for t in written.texts] == [t.tokens.tolist() for t in data.texts]
    files = sorted(file.name for file in kept_states(tmp_path, layers).iterdir())
    assert files[:1] == ["000000.npy"]
    assert len(files) < max(t.round for t in data.texts) + 1
    read = Features(llm, data.texts, layers, tmp_path / "read", 0)
    some = [0, 1, 31, len(data.texts) - 1]
    found = written.features(llm, layers, room, lambda *_: None)
    for number, one, other in zip(some, found.of(some), read.of(some)):
        assert len(one) == len(data.texts[number].tokens) - 1
        assert np.array_equal(one, other)
    again = make_data(llm, source, tmp_path, lambda *_: None, layers[1:], room)  # All are there.
    assert again.features(llm, layers[1:], room, lambda *_: None).layers == layers


def test_models_without_a_chat_format_go_on_with_what_they_began(tmp_path):
    with LLM(write_folder(tmp_path / "m", "llama"), threads=1) as llm:
        found = make_data(llm, TextSource(own=32, max_tokens=20), tmp_path / "d", lambda *_: None)
        assert len(found.texts) > 20
        for text in found.texts[:3]:
            count, prompt = len(text.tokens) - text.start, text.tokens[: text.start].tolist()
            plain = llm.generate([prompt], max_tokens=count, decoder=None)[0]
            assert plain.token_ids == text.tokens[text.start :].tolist()


def test_texts_are_the_models_own_and_cut_files_are_mended(llm, source, data, tmp_path):
    again = make_data(llm, source, tmp_path, lambda *_: None)
    file, whole = tmp_path / "texts.jsonl", (tmp_path / "texts.jsonl").read_bytes()
    assert [t.tokens.tolist() for t in again.texts] == [t.tokens.tolist() for t in data.texts]
    file.write_bytes(whole[:-100])
    make_data(llm, source, tmp_path, lambda *_: None)
    assert file.read_bytes() == whole
    with pytest.raises(InvalidInput, match="max_tokens"):
        make_data(llm, replace(source, max_tokens=31), tmp_path, lambda *_: None)
    text = next(text for text in data.texts if text.greedy)
    prompt = text.tokens[: text.start].tolist()
    count = len(text.tokens) - text.start
    plain = llm.generate([prompt], max_tokens=count, decoder=None)[0]
    assert plain.token_ids == text.tokens[text.start :].tolist()


def test_no_measured_prompt_is_trained_on(llm, tmp_path):
    measured = MeasuredPrompts()
    for prompt in load_prompts():
        assert measured.has(prompt.turns), prompt.id
        shouted = " ".join(["Please:", *prompt.turns]).upper().replace(",", " ;")
        assert measured.has([shouted]) or len(shouted.split()) < 9
    tasks = task_prompts(400, 0)
    assert sum(measured.has(task.turns) for task in tasks) < 8
    assert not any(
        "{" + kind in t for task in tasks for t in task.turns for kind in ("topic", "per")
    )

    lines = [{"prompt": load_prompts()[0].turns[0]}, {"prompt": "How do kites stay in the air?"}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    source = TextSource(prompts=(str(file),), own=0, max_tokens=16, length=256)
    found = make_data(llm, source, tmp_path / "data", lambda *_: None)
    assert (found.refused, len(found.texts)) == (1, 1)
    avoided = TextSource(prompts=(str(file),), own=0, avoid=(str(file),), max_tokens=16)
    with pytest.raises(InvalidInput, match="prompts"):
        make_data(llm, avoided, tmp_path / "none", lambda *_: None)


def test_the_commonest_tokens_are_drafted():
    texts = [HeadText(np.array([9, 5, 7, 7, 3], np.int32), 1, True),
             HeadText(np.array([9, 9, 7, 3, 3], np.int32), 2, True)]  # fmt: skip
    assert common_tokens(texts, 2, 10).tolist() == [3, 7]
    assert common_tokens(texts, 4, 10).tolist() == [0, 3, 5, 7]
    assert common_tokens(texts, 99, 10).tolist() == list(range(10))


def test_prompts_that_are_no_texts_are_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"texts": [{"prompt": [1]}], "refused": 0}\n')
    with pytest.raises(InvalidInput, match="texts"):
        read_texts(tmp_path / "t.jsonl", 64)
