"""Prompts of a file of conversations that breaks off."""

import json

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from tools.chat_prompts import chosen, user_turns


def entry(identity: str, *said: tuple[str, str]) -> dict[str, object]:
    return {"id": identity, "conversations": [{"from": who, "value": text} for who, text in said]}


def test_first_turns_are_found_once_each() -> None:
    good = "How do I sharpen a kitchen knife at home?"
    entries = [
        entry("a_0", ("human", f"  {good} "), ("gpt", "With a stone.")),
        entry("a_1", ("human", "And then, what comes after this?")),
        entry("b_0", ("gpt", "This one begins with an answer.")), entry("c_0", ("human", "short")),
        entry("d_0", ("human", "칼을 어떻게 갈아요? 저는 초보자입니다, 도와주세요")),
        entry("e_0", ("human", good.upper())), {"id": "f_0", "conversations": []},
        entry("g_0", ("user", "What is the tallest mountain of Europe?")),
        entry("h_0", ("human", "This conversation is not whole, so it is left out.")),
    ]  # fmt: skip
    text = json.dumps(entries, indent=1)[:-40]
    assert user_turns(text) == [good, "What is the tallest mountain of Europe?"]
    later = "And then, what comes after this?"
    assert user_turns(text, every=True) == [good, later, "What is the tallest mountain of Europe?"]
    assert user_turns("nothing") == []


def test_training_meets_them_in_a_random_order_of_all() -> None:
    """A run that is stopped early has answered the first of the same prompts."""
    prompts = [str(number) for number in range(100)]

    def met(count: int) -> list[str]:
        some = chosen(prompts, 90, count)
        return [some[i] for i in np.random.default_rng(0).permutation(count)]

    assert met(32) == met(90)[:32]
    assert len(set(met(90))) == 90
    assert met(90) != sorted(met(90), key=int)
    for of, count in ((90, 91), (101, 5), (90, 0)):
        with pytest.raises(InvalidInput, match="--count"):
            chosen(prompts, of, count)
