"""GGUF vocabularies, ends and templates agree with llama.cpp itself if xllamacpp is installed."""

from __future__ import annotations

import re
import warnings

import pytest
from llama_cpp import TYPES, LlamaCpp, learned, write_vocabulary
from tokenizer_strings import strings

from paradecode.models.gguf_file import read_gguf
from paradecode.models.gguf_tokenizer import END_OF_TURN

COMPOSED = "e\u0301"
"""Texts whose accents are composed first here, and in the models' tokenizers, not in llama.cpp."""
BY_CASE = r"[^\0-\x7f]"
"""Texts that llama.cpp splits otherwise: it knows only ASCII capitals, and no separate accents."""
THREES = r"[^\d\n]\d|\d[^\W\d]|[²½]"
"""Texts that llama.cpp splits otherwise: it does not split a word before the first digit, groups
digits from the end of any number, and reads some other characters as digits."""
UNLIKE = {
    "qwen2": COMPOSED, "qwen35": COMPOSED, "tekken": BY_CASE, "gpt-4o": BY_CASE,
    "granite-embed-multi-97m": BY_CASE, "kimi-k2": r"[\u0900-\u0fff\u0301\ufe0f\u2019]",
    "afmoe": THREES, "tiny_aya": f"{THREES}|’s", "superbpe": "٣",
}  # fmt: skip
"""Name -> texts that the model's own tokenizer splits differently from llama.cpp."""
KINDS = [
    "default", "gpt-2", "smollm", "falcon", "qwen2", "llama-bpe", "falcon3", "ufakzeka",
    "minicpm5", "laguna", "qwen35", "jais-2", "seed-coder", "exaone-moe", "llada-moe", "tekken",
    "gpt-4o", "deepseek-v3", "deepseek-coder", "deepseek-llm", "poro-chat", "viking",
    "afmoe", "tiny_aya", "superbpe", "youtu", "kimi-k2", "chameleon", "granite-embed-multi-97m",
    "spark2_5", "k2-horizon",
]  # fmt: skip
CHAT = [{"role": "user", "content": "Hi"}]
LETTERS, MERGES = learned()
FEW, FIRST = LETTERS[:300], MERGES[:44]
"""A smaller vocabulary, and its merges."""


def quiet(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_gguf(path)


@pytest.mark.first(1)
@pytest.mark.parametrize("pre", KINDS)
def test_words_are_cut_as_there(tmp_path, pre):
    path = write_vocabulary(tmp_path / "m.gguf", LETTERS, [1] * len(LETTERS), MERGES, pre)
    there, here = LlamaCpp(path), quiet(path).tokenizer
    texts = [text for text in strings(400) if not re.search(UNLIKE.get(pre, "$^"), text)]
    assert len(texts) > 60
    for text in texts:
        ids = here.encode(text, special=False, parse_special=False)
        assert ids == there.tokens(text), text


@pytest.mark.parametrize(
    ("pre", "space", "piece", "refused"),
    [("sarvam-moe", "▁", r"[^\n\0]+", r"\n\n"), ("whitespace", " ", r"[^\s\0]+", r"[ \n]{2}")],
)
def test_characters_are_merged_as_there(tmp_path, pre, space, piece, refused):
    """Merges of characters give llama.cpp's tokens; it ends itself at some runs of spaces."""
    known = "\n".join(strings()).replace(" ", space)
    letters, merges = learned(re.findall(piece, known))
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    types = [6] * 256 + [1] * len(letters)
    path = write_vocabulary(tmp_path / "m.gguf", tokens, types, merges, pre)
    there, here = LlamaCpp(path), quiet(path).tokenizer
    texts = [text for text in strings(400) if not re.search(refused, text)]
    assert len(texts) > 200
    for text in texts:
        ids = here.encode(text, special=False, parse_special=False)
        assert ids == there.tokens(text), text
        assert here.decode(ids) == text


@pytest.mark.wide
@pytest.mark.parametrize("fields", [{"pre": None}, {"pre": "default"}])
def test_a_file_without_a_pre_tokenizer_is_warned_about(tmp_path, fields):
    path = write_vocabulary(tmp_path / "m.gguf", LETTERS, [1] * len(LETTERS), MERGES, **fields)
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre"):
        read_gguf(path)


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_what_ends_a_text_there_ends_it_here(tmp_path, model, kind):
    """Tokens end a text exactly where they do in llama.cpp, which uses their names and uses."""
    names = [*END_OF_TURN, "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>",
             "<|im_start|>", "<|other|>"]  # fmt: skip
    names = [name for name in names if name not in ("<|call|>", "<|calls|>", "<|tool_response>")]
    if model == "gpt2":
        tokens = [*FEW, *names]
        types = [1] * 300 + [TYPES[kind]] * len(names)
    else:
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        tokens = ["<unk>", "<s>", "<end>", *bytes_, "▁", *names]
        types = [2, 3, 3, *[6] * 256, 1, *[TYPES[kind]] * len(names)]
    eos = {"ggml__eos_token_id": tokens.index("<|other|>"), "ggml__bos_token_id": 1}
    path = write_vocabulary(tmp_path / "m.gguf", tokens, types, FIRST if model == "gpt2" else [],
                            "gpt-2" if model == "gpt2" else None, model, **eos)  # fmt: skip
    there, here = LlamaCpp(path), quiet(path).config
    for name in (*names, tokens[100]):
        if name in ("<|role_end|>", "<|dlm_pad|>"):
            continue  # Ends of models unknown to llama.cpp.
        index = tokens.index(name)
        assert (index in here.eos_tokens) == there.ends(index), name


@pytest.mark.wide
@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["<|return|>", "<|call|>", "<|end|>"], ["<|return|>", "<|call|>"]),
        (["<|flush|>", "<|calls|>", "<|end|>"], ["<|flush|>", "<|calls|>"]),
        (["<|tool_response>", "</s>", "<turn|>"], ["<|tool_response>", "<turn|>"]),
        (["<|call|>", "<|end|>"], ["<|call|>", "<|end|>"]),
    ],
)
def test_names_that_end_a_text_in_some_families_only(tmp_path, names, kept):
    tokens = [*FEW, *names, "<|other|>"]
    types = [1] * 300 + [3] * (len(names) + 1)
    path = write_vocabulary(tmp_path / "m.gguf", tokens, types, FIRST,
                            ggml__eos_token_id=len(tokens) - 1)  # fmt: skip
    there, here = LlamaCpp(path), quiet(path).config
    assert {tokens[index] for index in here.eos_tokens} == {*kept, "<|other|>"}
    for name in names:
        index = tokens.index(name)
        assert (index in here.eos_tokens) == there.ends(index)


@pytest.mark.wide
@pytest.mark.parametrize("use", ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"])
def test_ends_that_a_key_names(tmp_path, use):
    tokens, types = [*FEW, "<|odd|>", "<|other|>"], [1] * 300 + [3, 3]
    fields = {f"ggml__{use}_token_id": 300, "ggml__eos_token_id": 301}
    path = write_vocabulary(tmp_path / "m.gguf", tokens, types, FIRST, **fields)
    assert quiet(path).config.eos_tokens == (300, 301)
    assert LlamaCpp(path).ends(300)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
USUAL = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"


@pytest.mark.wide
@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_a_chat_begins_with_bos_as_there(tmp_path, adds, writes):
    """A chat begins with BOS if the file's prompts do, even if the template does not write it."""
    tokens, types = [*FEW, "<s>", "<|end|>"], [1] * 300 + [3, 3]
    source = ("{{ bos_token }}" if writes else "") + USUAL
    path = write_vocabulary(
        tmp_path / "m.gguf", tokens, types, FIRST, ggml__bos_token_id=300,
        ggml__eos_token_id=301, ggml__add_bos_token=adds, chat_template=source,
    )  # fmt: skip
    there, here = LlamaCpp(path), quiet(path)
    ids = here.chat_template.encode(here.tokenizer, CHAT)
    assert ids == there.tokens(there.render(CHAT), special=True)
    assert ids.count(300) == (adds or writes)


@pytest.mark.wide
def test_the_template_for_tools_is_used_as_there(tmp_path):
    tokens, types = [*FEW, "<s>", "<|end|>"], [1] * 300 + [3, 3]
    path = write_vocabulary(
        tmp_path / "m.gguf", tokens, types, FIRST, ggml__bos_token_id=300,
        ggml__eos_token_id=301, chat_template=USUAL,
        chat_template__tool_use="T{{ tools | length }}" + USUAL,
    )  # fmt: skip
    there, here = LlamaCpp(path), quiet(path).chat_template
    for extra in ({}, {"tools": TOOLS}):
        assert here.render(CHAT, **extra) == there.render(CHAT, **extra)
    assert here.render(CHAT, tools=TOOLS).startswith("T1")
    assert here.shows("tools")
