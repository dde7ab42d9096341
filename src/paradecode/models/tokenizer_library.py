"""Guard the ``tokenizers`` library, which trusts its files: its errors, and limits on its work.

A normalizer's steps change a text, a pre-tokenizer's steps split and change it, and post-processors
add tokens. Twelve steps that write eight letters for one would fill any memory, and the library
then ends the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paradecode.core.errors import InvalidModel, cut

MOST_STEPS = 32
MOST_GROWTH = 128
"""The largest factor by which all steps together may lengthen a text; NFKC and byte-level pieces
need 44.
"""

_NORMALIZERS = {
    "BertNormalizer": 4, "ByteLevel": 2, "Lowercase": 2, "NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11,
    "Nmt": 1, "Prepend": 1, "Replace": 1, "Strip": 1, "StripAccents": 1,
}  # fmt: skip
_PRE_TOKENIZERS = {
    "BertPreTokenizer": 1, "ByteLevel": 4, "CharDelimiterSplit": 1, "Digits": 1, "Metaspace": 4,
    "Punctuation": 1, "Split": 1, "UnicodeScripts": 1, "Whitespace": 1, "WhitespaceSplit": 1,
}  # fmt: skip
_PROCESSORS = {"BertProcessing": 1, "ByteLevel": 1, "RobertaProcessing": 1, "TemplateProcessing": 1}
"""Kind of step -> the most bytes that it writes for one byte, beside bytes in its settings."""
_SEQUENCE = ("normalizers", "pretokenizers", "processors", "decoders")


@contextmanager
def library_errors(value: str, fix: str) -> Iterator[None]:
    """Turn the library's exceptions inside the block into InvalidModel.

    The library raises bare Exceptions. For unexpected content of a file it panics; that raises a
    BaseException of a class that cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        known = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if isinstance(error, InvalidModel) or not known:
            raise
        raise InvalidModel("tokenizer", value, f"{fix} ({cut(str(error), 200)})") from None


def steps_of(part: Any) -> list[dict[str, Any]]:
    """Return the steps of a normalizer, pre-tokenizer, post-processor or decoder.

    They have the format of tokenizer.json; None has no steps.
    """
    return [] if part is None else _flat(json.loads(part.__getstate__()))


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    inner = next(step[key] for key in _SEQUENCE if key in step)
    return [each for one in inner for each in _flat(one)]


def check_steps(backend: Any) -> None:
    """Raise InvalidModel if a step is unknown, or all steps could make a text much longer."""
    growth, count = 1, 0
    for part, known in (
        (backend.normalizer, _NORMALIZERS),
        (backend.pre_tokenizer, _PRE_TOKENIZERS),
        (backend.post_processor, _PROCESSORS),
    ):
        for step in steps_of(part):
            growth, count = growth * _growth(step, known), count + 1
            if growth > MOST_GROWTH or count > MOST_STEPS:
                fix = f"at most {MOST_STEPS} steps may make a text {MOST_GROWTH} times longer"
                raise InvalidModel("tokenizer", step, f"{fix}; get the files of a published model")


def _growth(step: Mapping[str, Any], known: Mapping[str, int]) -> int:
    """Return how many times longer a step may make a text."""
    kind = step["type"]
    if kind not in known:
        raise InvalidModel("tokenizer", kind, f"steps of the kinds {', '.join(known)} are known")
    if kind == "Replace":
        # An expression may match between any two letters.
        matched, written = step["pattern"].get("String", ""), len(step["content"].encode())
        return -(-written // len(matched.encode())) or 1 if matched else 1 + written
    if kind == "Prepend":
        return 1 + len(step["prepend"]) // MOST_STEPS
    if kind == "TemplateProcessing":
        return max(1, sum("Sequence" in piece for piece in step["single"]))
    return known[kind]
