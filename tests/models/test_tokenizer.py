"""Encoding and decoding agree with transformers and with SentencePiece's rule."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_strings import strings
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.catalogue import open_model
from paradecode.models.gguf_header import Header
from paradecode.models.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_from_header
from paradecode.models.metadata import Metadata
from paradecode.models.tokenizer import LONG, MAX_TEXT, Tokenizer
from tiers import examples

STORED = json.loads(Path(__file__).with_name("smollm2_tokens.json").read_text())


def test_default_tokenizer_gives_the_ids_of_transformers(default_model):
    assert [text for text, _ in STORED["texts"]] == strings()
    for text, ids in STORED["texts"]:
        assert default_model.tokenizer.encode(text) == ids, repr(text)


@pytest.mark.slow
def test_stored_ids_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    path = Path(open_model().source)
    live = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # transformers loses this family's splitting of digits; the published tokenizer.json has it.
    live.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    for text, ids in STORED["texts"]:
        assert live.encode(text) == ids
    for chat in STORED["chats"]:
        ids = live.apply_chat_template(
            chat["messages"],
            add_generation_prompt=chat["add_generation_prompt"],
            return_dict=False,
        )
        assert ids == chat["ids"]


def test_control_tokens_can_be_switched_off(default_model):
    tokenizer = default_model.tokenizer
    text = "a<|im_end|>b"
    assert tokenizer.control["<|im_end|>"] in tokenizer.encode(text)
    literal = tokenizer.encode(text, parse_special=False)
    assert not any(map(tokenizer.is_control, literal))
    assert tokenizer.decode(literal) == text
    assert tokenizer.decode(tokenizer.encode(text)) == "ab"
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_text_with_control_tokens_needs_no_copy_of_the_tables(default_model, monkeypatch):
    text, copies = "a<|im_end|>b  <|endoftext|><|far|>\nö", []

    class Counted:
        def __new__(cls, model):
            return Backend(model)

        @staticmethod
        def from_str(text):
            copies.append(text)
            return Backend.from_str(text)

    monkeypatch.setattr("paradecode.models.tokenizer.Backend", Counted)
    usual = default_model.tokenizer._backend
    for backend in (usual, _with_a_gap(usual)):
        copy = Backend.from_str(backend.to_str())
        copy.encode_special_tokens = True
        tokenizer = Tokenizer(backend)
        assert tokenizer.encode(text, parse_special=False) == copy.encode(text).ids
        (literal,) = tokenizer._literal.values()
        assert literal.get_added_tokens_decoder() == copy.get_added_tokens_decoder()
        assert tokenizer.control["<|im_end|>"] in tokenizer.encode(text)
    assert copies == []


def _with_a_gap(backend):
    """Return the same tokenizer with an added token whose id leaves a gap."""
    said = json.loads(backend.to_str())
    said["model"]["vocab"]["<|far|>"] = 60_000
    said["added_tokens"].append({**said["added_tokens"][0], "id": 60_000, "content": "<|far|>"})
    return Backend.from_str(json.dumps(said))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "x" * (MAX_TEXT + 1), b"bytes", None])
def test_bad_text(default_model, text):
    with pytest.raises(InvalidInput, match="text"):
        default_model.tokenizer.encode(text)


def test_ids_outside_of_the_vocabulary_are_nothing(default_model):
    tokenizer = default_model.tokenizer
    assert tokenizer.decode([-1, 1 << 40, 60000]) == ""
    assert tokenizer.token(-1) == tokenizer.token(1 << 40) == ""
    assert not tokenizer.is_control(-1)


# --- incremental detokenising ----------------------------------------------------------------


def streamed(tokenizer, ids, skip):
    stream = tokenizer.stream(skip_special=skip)
    pieces = [stream.push(index) for index in ids]
    return [*pieces, stream.flush()]


DEFAULT = open_model().tokenizer
# Random ids of a large vocabulary rarely contain partial characters, so add some.
PARTIAL = [index for index in range(DEFAULT.vocab_size) if len(DEFAULT.token(index)) == 1]
IDS = st.one_of(st.integers(-1, 49300), st.sampled_from(PARTIAL), st.integers(0, 16))


@given(st.lists(IDS, max_size=40), st.booleans())
@examples(400)
def test_stream_equals_decode_for_byte_level(ids, skip):
    assert "".join(streamed(DEFAULT, ids, skip)) == DEFAULT.decode(ids, skip)


@pytest.mark.parametrize("text", strings()[:80])
def test_stream_never_shows_half_a_character(default_model, text):
    tokenizer = default_model.tokenizer
    ids = tokenizer.encode(text, parse_special=False)
    whole = tokenizer.decode(ids)
    pieces = streamed(tokenizer, ids, True)
    assert "".join(pieces) == whole
    if "\ufffd" not in whole:
        assert not any("\ufffd" in piece for piece in pieces)


def test_stream_starts_anew_after_flush(default_model):
    stream = default_model.tokenizer.stream()
    for _ in range(2):
        ids = default_model.tokenizer.encode("日")
        assert "".join([*map(stream.push, ids), stream.flush()]) == "日"


# --- SentencePiece-like vocabularies ---------------------------------------------------------


def sentencepiece(prefix=True, add_bos=True) -> Tokenizer:
    words = ["▁", *"abcdehlortw", "he", "ll", "lo", "hell", "▁he", "▁w", "or", "wor", "ld", "el"]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *words, "<user>"]
    types = np.array([2, 3, 3, *[6] * 256, *[1] * len(words), 4], np.int32)
    scores = -np.arange(len(tokens), dtype=np.float32)
    fields = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": prefix, "tokenizer.ggml.add_bos_token": add_bos,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip
    return tokenizer_from_header(Header(Metadata(fields), {}))


SENTENCEPIECE = {prefix: sentencepiece(prefix) for prefix in (True, False)}


def reference(tokenizer, text):
    """Apply SentencePiece's BPE: join the neighbours whose union scores best, again and again."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [symbols[n] + symbols[n + 1] for n in range(len(symbols) - 1)]
        known = {tokenizer.token_id(union): n for n, union in reversed([*enumerate(unions)])}
        known.pop(None, None)
        if not known:
            break
        best = known[min(known)]
        symbols[best : best + 2] = [unions[best]]
    ids = []
    for symbol in symbols:
        index = tokenizer.token_id(symbol)
        ids += [3 + byte for byte in symbol.encode()] if index is None else [index]
    return ids


@given(st.text("abcdehlortw é日😀", max_size=20))
@settings(deadline=None)
def test_sentencepiece_joins_best_scores_first(text):
    tokenizer = SENTENCEPIECE[True]
    ids = tokenizer.encode(text, special=False)
    assert ids == reference(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) == [1, *ids]


@given(st.lists(st.one_of(st.integers(0, 290), st.integers(3, 258)), max_size=30), st.booleans())
@examples(300)
def test_stream_equals_decode_for_sentencepiece(ids, skip):
    for prefix in (True, False):
        tokenizer = SENTENCEPIECE[prefix]
        assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


def test_sentencepiece_details():
    tokenizer = sentencepiece(prefix=False, add_bos=False)
    assert tokenizer.decode(tokenizer.encode(" he")) == " he"
    assert tokenizer.encode("he<user>") == [tokenizer.token_id("he"), tokenizer.token_id("<user>")]
    assert tokenizer.control == {"<s>": 1, "</s>": 2}
    assert (tokenizer.add_bos, tokenizer.eos_tokens) == (False, (2,))


# --- what the files may say ------------------------------------------------------------------


def fields(**changes):
    tokens = ["a", "b", "ab", "<|end|>"]
    good = {
        "model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["a b"],
        "token_type": np.array([1, 1, 1, 3]),
    }  # fmt: skip
    fields = {f"tokenizer.ggml.{k}": v for k, v in (good | changes).items()}
    return Header(Metadata(fields), {})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": "wordpiece"}, "gpt2"), ({"pre": "martian"}, "llama-bpe"),
        ({"tokens": ["a", "a"]}, "differ"), ({"tokens": 3}, "list of strings"),
        ({"token_type": np.array([1])}, "4 numbers"), ({"merges": ["a zz"]}, "damaged"),
        ({"merges": ["ab"]}, "damaged"), ({"bos_token_id": 99}, "4 tokens"),
        ({"model": "llama", "scores": np.full(4, np.nan)}, "scores"), ({"model": None}, "gpt2"),
    ],
)  # fmt: skip
def test_contradictory_vocabularies(changes, match):
    with pytest.raises(InvalidModel, match=match):
        tokenizer_from_header(fields(**changes))


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"pre": "llama-bpe"}, [3, 2]), ({"pre": "llama3"}, [3, 2]), ({"pre": "llama-v3"}, [3, 2]),
        ({"pre": "llama-bpe", "add_bos_token": False}, [2]), ({"pre": "llama-bpe",
        "bos_token_id": None}, [2]), ({"pre": "qwen2"}, [2]), ({}, [2]),
        ({"add_bos_token": True}, [3, 2]),
    ],
)  # fmt: skip
def test_which_prompts_begin_with_bos(changes, ids):
    """If the file does not say whether prompts begin with BOS, llama.cpp's rule decides."""
    tokenizer = tokenizer_from_header(fields(**{"bos_token_id": 3, **changes}))
    assert tokenizer.encode("ab") == ids
    assert tokenizer.add_bos is (len(ids) == 2)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "ab 12ab", ["ab", "Ġ12", "ab"]),
        ("smollm", "ab 12ab", ["ab", "Ġ", "1", "2", "ab"]),
        ("qwen2", "ab 12ab's", ["ab", "Ġ", "1", "2", "ab", "'s"]),
        ("llama-bpe", "ab 1234ab", ["ab", "Ġ", "123", "4", "ab"]),
    ],
)
def test_pre_tokenizers(pre, text, words):
    assert [word for word, _ in PRE_TOKENIZERS[pre]().pre_tokenize_str(text)] == words


def test_a_vocabulary_that_loses_spaces_is_warned_about():
    with pytest.warns(UserWarning, match="lose the spaces"):
        tokenizer = tokenizer_from_header(fields(pre="whitespace"))
    assert tokenizer.encode("ab b") == [2, 1]


def test_unknown_decoders_are_refused():
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    with pytest.raises(InvalidModel, match="decoder"):
        Tokenizer(backend)
    backend.decoder = decoders.WordPiece()
    with pytest.raises(InvalidModel, match="WordPiece"):
        Tokenizer(backend)
    backend.decoder = decoders.Sequence([decoders.Replace(Regex("a+"), "b"), decoders.Fuse()])
    with pytest.raises(InvalidModel, match="Replace"):
        Tokenizer(backend)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("ü é", special=False)])
    tokenizer = Tokenizer(backend)
    ids = [tokenizer.token_id("ü é")] * 2
    assert "".join(streamed(tokenizer, ids, True)) == tokenizer.decode(ids) == "ü éü é"


def test_other_threads_go_on_while_a_long_text_is_encoded(default_model):
    """Encoding a long text does not hold Python's global lock, so other threads can run."""
    tokenizer = default_model.tokenizer
    text = "copper and zinc, " * 40_000
    assert len(text) > LONG
    piece = tokenizer.encode(text[: LONG // 2], parse_special=False)
    ended, turns = threading.Event(), 0

    def go_on():
        nonlocal turns
        while not ended.wait(0.001):
            turns += 1

    other = threading.Thread(target=go_on)
    other.start()
    ids = tokenizer.encode(text, parse_special=False)
    had = turns
    ended.set()
    other.join()
    assert ids[: len(piece) - 8] == piece[:-8]
    assert tokenizer.decode(ids) == text
    assert had > 10
