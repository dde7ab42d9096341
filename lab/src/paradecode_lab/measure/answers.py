"""Checks whether an answer is right."""

from __future__ import annotations

import re
from collections.abc import Sequence

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def is_right(text: str, answers: Sequence[str]) -> bool:
    """Whether ``text`` says one of ``answers``.

    An answer that is a number must be the last number of the text (GSM8K's convention: the result
    comes last). Any other answer must occur in the text; case and spacing do not matter.
    """
    said = " ".join(text.split()).casefold()
    numbers = [_value(found) for found in NUMBER.findall(text)]
    for answer in answers:
        if NUMBER.fullmatch(answer.strip()):
            if numbers and numbers[-1] == _value(answer.strip()):
                return True
        elif " ".join(answer.split()).casefold() in said:
            return True
    return False


def _value(number: str) -> float:
    return float(number.replace(",", ""))
