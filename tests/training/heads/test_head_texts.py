"""The training data of heads: the model's own texts, and its states over them."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode_lab.measure.prompts import load_prompts
from tiny_folder import write_folder

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
import paradecode_lab.training.heads.answers as head_answers
from paradecode_lab.training.heads.answers import EngineWriter
from paradecode_lab.training.heads.data import HeadData, make_data
from paradecode_lab.training.heads.features import Features
from paradecode_lab.training.heads.initial import common_tokens
from paradecode_lab.training.heads.objective import acceptance, batch_of
from paradecode_lab.training.heads.prompts import MeasuredPrompts, task_prompts
from paradecode_lab.training.heads.texts import HeadText, TextSource, kept_states, read_texts
from paradecode_lab.training.ngrams.own_text import TOGETHER, own_questions

pytestmark = pytest.mark.usefixtures("one_thread")


def test_states_are_the_same_from_the_cache_and_computed_again(llm, data, tmp_path):
    kept = Features(EngineWriter(llm), data.texts[:70], (0, 1), tmp_path / "a", 1e9)
    kept.fill(lambda *_: None)
    assert len(list((tmp_path / "a").iterdir())) == 2
    fresh = Features(EngineWriter(llm), data.texts[:70], (0, 1), tmp_path / "b", 0)
    for one, other in zip(kept.of([0, 69, 5]), fresh.of([0, 69, 5])):
        assert np.array_equal(one, other)
    row = 2 * 2 * llm.config.hidden_size
    first = sum(len(text.tokens) - 1 for text in data.texts[:64]) * row
    half = Features(EngineWriter(llm), data.texts[:70], (0, 1), tmp_path / "c", first)
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
    room = 40 * 40 * row  # Enough for the first round only.
    written = make_data(llm, source, tmp_path, lambda *_: None, layers, room)
    assert [t.tokens.tolist() for t in written.texts] == [t.tokens.tolist() for t in data.texts]
    files = sorted(file.name for file in kept_states(tmp_path, layers).iterdir())
    assert files[:1] == ["000000.npy"]
    assert len(files) < max(t.round for t in data.texts) + 1
    read = Features(EngineWriter(llm), data.texts, layers, tmp_path / "read", 0)
    some = [0, 1, 31, len(data.texts) - 1]
    found = written.features(llm, layers, room, lambda *_: None)
    for number, one, other in zip(some, found.of(some), read.of(some)):
        assert len(one) == len(data.texts[number].tokens) - 1
        assert np.array_equal(one, other)
    again = make_data(llm, source, tmp_path, lambda *_: None, layers[1:], room)  # None is missing.
    assert again.features(llm, layers[1:], room, lambda *_: None).layers == layers


def test_models_without_a_chat_format_go_on_with_what_they_began(tmp_path):
    with LLM(write_folder(tmp_path / "m", "llama"), threads=1) as llm:
        found = make_data(llm, TextSource(own=32, max_tokens=20), tmp_path / "d", lambda *_: None)
        assert len(found.texts) > 20
        for text in found.texts[:3]:
            count, prompt = len(text.tokens) - text.start, text.tokens[: text.start].tolist()
            plain = llm.complete([prompt], max_tokens=count, decoder=None)[0]
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
    plain = llm.complete([prompt], max_tokens=count, decoder=None)[0]
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


@pytest.mark.wide
def test_no_measured_prompt_is_made_up_again(llm, tmp_path, monkeypatch):
    """A prompt for measuring is never trained on, whatever the chat format puts around it."""

    def with_words(*given):
        """Imitate a chat format whose control tokens are words."""
        for some in own_questions(*given):
            yield [
                (text, llm.chat_tokens([{"role": "user", "content": f"user {text} assistant"}]))
                for text, _ in some
            ]

    monkeypatch.setattr(head_answers, "own_questions", with_words)
    folder = tmp_path / "free"
    free = TextSource(own=2 * TOGETHER, max_tokens=8, length=96)
    asked = [text for text, _ in next(own_questions(llm, TOGETHER, free.seed))]
    short = next(text for text in asked if 0 < len(re.findall(r"\w+", text)) < 8)
    file = tmp_path / "measured.jsonl"
    file.write_text(json.dumps({"id": "a", "group": "g", "turns": [short.upper()]}) + "\n")
    found = make_data(llm, replace(free, avoid=(str(file),)), tmp_path / "data", lambda *_: None)
    before = make_data(llm, free, folder, lambda *_: None)
    assert found.refused == before.refused + asked.count(short)


def test_data_of_another_model_of_the_same_name_are_refused(llm, source, tmp_path):
    """The digest of the weights must tell models apart that have the same name."""
    few = replace(source, own=2 * TOGETHER, prompts=(), max_tokens=8)
    make_data(llm, few, tmp_path, lambda *_: None)
    with LLM("paradecode/graded-autoregressive", threads=1) as other:
        other.model = llm.model
        with pytest.raises(InvalidInput, match=r"weights.*name a new folder"):
            make_data(other, few, tmp_path, lambda *_: None)
        begun = json.loads((tmp_path / "source.json").read_text())
        del begun["weights"]  # As older versions wrote it.
        (tmp_path / "source.json").write_text(json.dumps(begun))
        make_data(other, few, tmp_path, lambda *_: None)
    make_data(llm, few, tmp_path, lambda *_: None)


@pytest.mark.parametrize("text", ["[]", "[1]", "{", "3", ""])
def test_a_damaged_source_is_named(llm, tmp_path, text):
    (tmp_path / "source.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"data: .*name a new folder"):
        make_data(llm, TextSource(own=32), tmp_path, lambda *_: None)


ROUND = json.dumps({"texts": [{"prompt": [1], "answer": [2] * 9, "greedy": True}], "refused": 0})


@pytest.mark.parametrize("line", [
    ROUND[:-20], "[]", "3", "{}", '{"texts": 3, "refused": 0}', ROUND.replace("0}", '"a"}'),
    ROUND.replace("true", "3"), ROUND.replace("[1]", "[-1]"), ROUND.replace("[1]", "[1.5]"),
    ROUND.replace("[1]", "[9999999999]"), ROUND.replace("prompt", "p"), "",
])  # fmt: skip
def test_a_damaged_line_is_named(llm, source, tmp_path, line):
    """A damaged line in the middle is found before texts are made, and when they are read."""
    file = tmp_path / "texts.jsonl"
    file.write_text(f"{ROUND}\n{line}\n{ROUND}\n")
    for use in (
        lambda: make_data(llm, source, tmp_path, lambda *_: None),
        lambda: read_texts(file, 64),
    ):
        with pytest.raises(
            InvalidInput, match=r"texts\.jsonl line 2: .*delete this line and all that"
        ):
            use()
    assert len(file.read_text().split("\n")) == 4


def test_damaged_states_are_named(llm, data, tmp_path):
    texts, layers = data.texts[:70], (0, 1)

    def features(texts=texts):
        return Features(EngineWriter(llm), texts, layers, tmp_path, 1e9)

    features().fill(lambda *_: None)
    file = tmp_path / "000001.npy"
    whole = file.read_bytes()
    states = np.load(file)
    for damage in (
        lambda: file.write_bytes(whole[:-100]),
        lambda: file.write_bytes(whole[:20]),
        lambda: file.write_bytes(b""),
        lambda: np.save(file, states[:-1]),
        lambda: np.save(file, np.concatenate([states, states[:1]])),
        lambda: np.save(file, states.astype(np.float32)),
    ):
        damage()
        with pytest.raises(InvalidInput, match=r"states 000001\.npy: .*remove it"):
            features().fill(lambda *_: None)
        with pytest.raises(InvalidInput, match=r"states 000001\.npy: .*remove it"):
            features().of([69])
    file.unlink()
    features().fill(lambda *_: None)
    assert file.read_bytes() == whole


def test_states_that_were_kept_while_writing_are_checked_as_well(llm, source, tmp_path):
    layers = (0, llm.config.layers - 1)
    written = make_data(llm, source, tmp_path, lambda *_: None, layers, 1e9)
    kept = kept_states(tmp_path, layers)
    file = kept / "000000.npy"
    states = np.load(file)
    last = max(t.row + len(t.tokens) - 1 for t in written.texts if t.round == 0)
    for cut in (states[: last - 1], states[:, :-1], states[0]):
        np.save(file, cut)
        with pytest.raises(InvalidInput, match=r"states 000000\.npy: .*remove it"):
            written.features(llm, layers, 1e9, lambda *_: None)
    file.unlink()  # Now these texts are read again.
    again = written.features(llm, layers, 1e9, lambda *_: None)
    number = next(i for i, text in enumerate(written.texts) if text.round == 0)
    text = written.texts[number]
    assert np.array_equal(again.of([number])[0], states[text.row : text.row + len(text.tokens) - 1])


def test_nothing_is_guessed_behind_the_end():
    """If all drafts of a short text are right, only its own tokens count, none after its end."""
    tokens = np.arange(1, 9, dtype=np.int32)  # A prompt of 2 and an answer of 6.
    text = HeadText(tokens, 2, True)
    batch = batch_of([text], [np.zeros((7, 4), np.float16)], [0], [0], np.arange(20))

    def levels(rows, depth):
        made = [torch.zeros(len(batch.at(level)), 20) for level in range(depth)]
        for level, logits in enumerate(made):
            logits[torch.arange(len(logits)), batch.wanted[batch.at(level)]] = 1
        return made

    for heads, forwards in ((8, 1), (4, 1), (3, 2), (1, 3)):
        found = acceptance(SimpleNamespace(heads=heads, levels=levels), [batch])
        assert found.tokens_a_forward == 5 / forwards  # The prompt's forward gives the first.


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
