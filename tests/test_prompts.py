"""Tests of the prompts file, and of the inputs that are made from it."""

import json

import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.prompt_sources import read_prompts
from paradecode_lab.measure.prompts import (
    DEFAULT_FILE,
    first_of_each_group,
    load_prompts,
    make_items,
)
from paradecode_lab.measure.suites.load.asks import read_asks


def _file(tmp_path, *lines) -> object:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return file


@pytest.mark.skipif(not DEFAULT_FILE.is_file(), reason="the package has no prompts")
def test_own_prompts_are_many_and_varied() -> None:
    prompts = load_prompts()
    assert len(prompts) >= 60
    assert len({prompt.group for prompt in prompts}) >= 10
    assert len(first_of_each_group(prompts, 1)) == len({prompt.group for prompt in prompts})


def test_turns_continue_with_a_reference_answer(tmp_path) -> None:
    file = _file(
        tmp_path, {"id": "a", "group": "chat", "turns": ["one", "two", "three"], "max_tokens": 20},
        "", {"id": "b", "group": "qa", "turns": ["four"]},
    )  # fmt: skip
    seen = []

    def encode(messages) -> list[int]:
        seen.append([m["content"] for m in messages])
        return list(range(len(messages)))

    items = make_items(load_prompts(file), encode, lambda messages, limit: f"<{limit}>", 50)
    assert [item.id for item in items] == ["a/1", "a/2", "a/3", "b"]
    assert [item.prompt for item in items] == ["a", "a", "a", "b"]
    assert [item.max_tokens for item in items] == [20, 20, 20, 50]
    assert seen[2] == ["one", "<20>", "two", "<20>", "three"]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_texts_may_have_line_ends_of_unicode(tmp_path, mark) -> None:
    """JSON allows Unicode's line ends unescaped inside a text, so they do not end a line."""
    said = f"first line{mark}second line"
    entries = [{"id": name, "group": "g", "turns": [said]} for name in "ab"]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\r\n\n".join(lines), "utf-8")
    assert [prompt.turns for prompt in load_prompts(file)] == [(said,)] * 2
    for text in (tmp_path / "one.txt", tmp_path / "one.md"):
        text.write_text(said, "utf-8")
        assert [prompt.turns for prompt in read_prompts(str(text))] == [(said,)]
        assert [ask.turns for ask in read_asks(text)] == [(said,)]


@pytest.mark.parametrize("line", [
    "not json", "[]", {"group": "g", "turns": ["x"]}, {"id": "a", "turns": ["x"]},
    {"id": "a", "group": "g", "turns": []}, {"id": "a", "group": "g", "turns": "x"},
    {"id": "a", "group": "g", "turns": [1]},
    {"id": "a", "group": "g", "turns": ["x"], "max_tokens": 0},
    {"id": "a", "group": "g", "turns": ["x"], "max_tokens": True},
])  # fmt: skip
def test_bad_lines_are_named(tmp_path, line) -> None:
    good = {"id": "ok", "group": "g", "turns": ["x"]}
    with pytest.raises(InvalidInput, match="line 2"):
        load_prompts(_file(tmp_path, good, line))


def test_bad_files_are_refused(tmp_path) -> None:
    same = {"id": "a", "group": "g", "turns": ["x"]}
    with pytest.raises(InvalidInput, match="id of its own"):
        load_prompts(_file(tmp_path, same, same))
    with pytest.raises(InvalidInput, match="at least one"):
        load_prompts(_file(tmp_path, ""))
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_prompts(tmp_path / "missing")
