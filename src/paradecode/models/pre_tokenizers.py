"""Pre-tokenizers: how texts are split before byte-level BPE, by the names that GGUF files use.

A pre-tokenizer is a list of regular expressions. The first one splits the text, and each further
one splits the pieces; text between two matches is a piece as well. If llama.cpp names a model's own
tokenizer, the expressions come from there, and otherwise from llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import Regex, pre_tokenizers

_SHORT = r"'(?i:s|t|re|ve|m|ll|d)"
"""English endings after an apostrophe."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_LATER = "[\u10d0-\u10ff\U00010570-\U000105bf\U00016e40-\U00016e7f\U0001d400-\U0001dfff]"
"""Cased letters that are not in DeepSeek's list; Unicode added most of them later."""
_EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _HAN
)
_ASCII = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""


def _words(digits: str, endings: str = _SHORT + "|", letters: str = r"\p{L}+") -> str:
    """Return the expression of Llama 3, Qwen and many others."""
    marks = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return rf"{endings}[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{marks}|{_SPACES}"


def _cased(digits: str, ending: str = "") -> str:
    """Return the expression of GPT-4o, Tekken and others, which split words before a capital."""
    head = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{head}{_UPPER}*{_LOWER}+{ending}|{head}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_DEEPSEEK_V3 = (
    r"\p{N}{1,3}", _HAN,
    _ASCII + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)  # fmt: skip
_QWEN2, _LLAMA3 = _words(r"\p{N}"), _words(r"\p{N}{1,3}")
_DIGITS_GPT2 = (r"\p{N}", _GPT2)
_CASED3 = _cased(r"\p{N}{1,3}", rf"(?:{_SHORT})?")
_THREES = r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))"
"""Groups of three digits, counted from the end of a number."""
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_KINDS: dict[tuple[str, ...], str] = {
    _DEFAULT: "default",
    (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"): "falcon",
    (_GPT2,): "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum "
              "modern-bert exaone4 mpt olmo jais trillion granite-docling roberta-bpe jina-v1-en "
              "jina-v2-code",
    _DIGITS_GPT2: "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    (_QWEN2,): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    (_LLAMA3,): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano "
                "dbrx smaug-bpe glm4 chatglm-bpe",
    (_words(r"\p{N}", "", r"\p{L}+"),): "ufakzeka",
    (r"\p{N}{1,3}", _words(r"\p{N}+")): "minicpm5",
    ("[^\n]+|\n+", _QWEN2): "laguna",
    (_words(r"\p{N}", letters=r"[\p{L}\p{M}]+").replace(
        r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]"),): "qwen35",
    (_LLAMA3.replace(_SPACES, r"\s*[\r\n]+" + "".join(
        rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s"
    ),): "jais-2",
    (_words(r"\p{N}{1,3}", letters="[\\p{L}\\p{M}\u200c\u200d]+"),): "k2-horizon",
    (_QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+"),): "seed-coder",
    (_words(r"\p{N}", letters=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+").replace(
        r"]+[\r\n]*", r"]+[\r\n/]?").replace(r"\s*[\r\n]+", r"\s*[\r\n]"),): "exaone-moe",
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
     r"|\s*[\r\n]|\s+(?!\S)|\s+",): "llada-moe bailingmoe bailingmoe2",
    (_cased(r"\p{N}"),): "tekken",
    (_CASED3,): "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m",
    _DEEPSEEK_V3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    (r"\p{N}{1,3}", _HAN, _DEEPSEEK_V3[2].replace(
        r"]+[\r\n]*|\s*[\r\n]+", r"]+|[\r\n]"), r"\p{N}"): "spark2_5",
    (_THREES, _ASIAN, _DEEPSEEK_V3[2]): "afmoe",
    (r"\d{1,3}(?=(?:\d{3})*\b)", _CASED3): "tiny_aya cohere2moe",
    (r"\p{N}+", r"(?=(\d{3})+(?!\d))"): "superbpe",
    (_YOUTU, _cased(r"\p{N}", rf"(?:{_SHORT})?")): "youtu",
    (r"\p{Han}+|" + _CASED3.replace("/", "").replace(r"{M}]", r"{M}&&[^\p{Han}]]"),): "kimi-k2",
    ("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
     r"[\p{P}!-/:-@\[-`{-~]", _GPT2): "chameleon",
    ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST, r"\p{N}"): "deepseek-coder",
    ("[\r\n]", rf"\s?(?:(?!{_LATER})[\p{{Lu}}\p{{Ll}}\p{{Lt}}])+",
     "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
     r"\s+$", _EAST, r"\p{N}+"): "deepseek-llm",
    (r" ?[^(\s|.,!?…。，、।۔،)]+",): "poro-chat bloom gpt3-finnish",
    (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"): "viking",
}  # fmt: skip
"""Expressions -> names of the pre-tokenizers that use them."""


def _cutter(expressions: tuple[str, ...]) -> Callable[[], Any]:
    def made() -> Any:
        cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in expressions]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, last])

    return made


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    name: cutter
    for expressions, names in _KINDS.items()
    for cutter in (_cutter(expressions),)
    for name in names.split()
}
"""Name in a file -> a function that makes the pre-tokenizer."""
CHARACTERS = {"sarvam-moe": "[^\n]+|\n+", "whitespace": r"\S+"}
"""Names of pre-tokenizers before merges of characters in place of bytes -> the expression."""
LLAMA3 = (
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano",
)  # fmt: skip
BEGIN = (*LLAMA3, "tekken", "chameleon")
"""Names of pre-tokenizers whose prompts begin with BOS, unless the file says otherwise."""
WHOLE = (*LLAMA3, "tekken", "minicpm5", "youtu", "granite-embed-multi-97m")
"""Names of pre-tokenizers for which a piece that is a token is never split further."""
COMPOSED = ("qwen2", "deepseek-r1-qwen", "qwen35")
"""Names of pre-tokenizers for which texts are composed first (NFC); llama.cpp does not do that."""
