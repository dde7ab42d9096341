"""Tests prompts from a file of conversations whose end is missing."""

import json

from tools.chat_prompts import user_turns


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
