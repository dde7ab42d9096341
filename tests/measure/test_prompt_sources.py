"""Tests prompts in the formats of other benchmarks, and the files that a spec names."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import Spec, find, parse
from paradecode_lab.measure.prompt_sources import read_prompts
from paradecode_lab.measure.prompts import load_prompts
from paradecode_lab.measure.spec_files import digests_of
from paradecode_lab.measure.suites.generation.suite import is_right

SHAREGPT = [
    {"id": "x", "conversations": [
        {"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hello"},
        {"from": "gpt", "value": "Hi"}, {"from": "human", "value": "Bye"}]},
    {"id": "empty", "conversations": [{"from": "gpt", "value": "alone"}]},
    {"messages": [{"role": "user", "content": "One"}]},
]  # fmt: skip


def write(file, *entries):
    file.write_text("\n".join(map(json.dumps, entries)), "utf-8")
    return str(file)


def test_without_a_source_it_is_the_packages_own():
    prompts = read_prompts()
    assert prompts == load_prompts()
    assert len(prompts) >= 90
    groups = {prompt.group for prompt in prompts}
    assert groups >= {"chat", "translation", "summary", "qa", "reasoning", "rag",
                      "code", "edit", "extraction", "agent"}  # fmt: skip
    assert all(len(p.turns) > 1 for p in prompts if p.group == "chat")
    assert sum(bool(prompt.answers) for prompt in prompts) >= 15


def test_spec_bench_and_its_kin(tmp_path):
    source = write(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["c"]},
        {"question_id": "q-7", "category": "rag", "sub_category": "x", "turns": ["d"],
         "source": "s", "multiturn": False},
    )  # fmt: skip
    first, second = read_prompts(source)
    assert (first.id, first.group, first.turns) == ("81", "writing", ("a", "b"))
    assert (second.id, second.group, second.turns) == ("q-7", "rag", ("d",))


def test_conversations_of_sharegpt_and_openai(tmp_path):
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps(SHAREGPT), "utf-8")
    first, second = read_prompts(str(file))
    assert (first.system, first.turns) == ("Be brief.", ("Hello", "Bye"))
    assert (second.id, second.group, second.turns) == ("sharegpt-3", "sharegpt", ("One",))


def test_questions_with_answers(tmp_path):
    source = write(
        tmp_path / "gsm8k.jsonl", {"question": "2 + 3?", "answer": "Two and three.\n#### 5"},
        {"task_id": "HumanEval/0", "prompt": "def f():"},
    )  # fmt: skip
    first, second = read_prompts(source)
    assert first.answers == ("5",)
    assert (second.id, second.turns) == ("HumanEval/0", ("def f():",))


def test_texts(tmp_path):
    (tmp_path / "one.txt").write_text("All of it.\n\nOne prompt.")
    (tmp_path / "two.md").write_text("first\n---\n\n---\nsecond\n")
    (tmp_path / "other.bin").write_bytes(b"\xff")
    assert [p.turns[0] for p in read_prompts(str(tmp_path / "one.txt"))] == [
        "All of it.\n\nOne prompt."
    ]
    prompts = read_prompts(str(tmp_path))
    assert [(p.id, p.group) for p in prompts] == [
        ("one-1", "one"), ("two-1", "two"), ("two-2", "two"),
    ]  # fmt: skip


def test_hub_datasets(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        if config == "none":
            raise ValueError("no such config\nlong story")
        return [{"question_id": 1, "category": "qa", "turns": ["x"]}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (prompt,) = read_prompts("hub:nvidia/SPEED-Bench:qualitative")
    assert prompt.group == "qa"
    read_prompts("hub:a/b:c:train")
    assert asked == [("nvidia/SPEED-Bench", "qualitative", "test"), ("a/b", "c", "train")]
    with pytest.raises(InvalidInput, match=r"download the file.*no such config\)"):
        read_prompts("hub:a/b:none")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InvalidInput, match="install `datasets`"):
        read_prompts("hub:a/b")


@pytest.mark.parametrize(("text", "said"), [
    ("", "at least one"), ("{", "line 1"), ("[{]", "not JSON"), ("[1]", "entry 1"),
    ('{"turns": "x"}', "line 1 turns"), ('{"turns": [1]}', "turns"), ('{"x": 1}', "turns"),
    ('{"conversations": 3}', "conversations"),
    ('{"conversations": [{"from": "user"}]}', "conversations"),
    ('{"category": 3, "turns": ["x"]}', "group"), ('{"turns": ["x"], "max_tokens": 0}', "max_"),
    ('{"turns": ["x"], "answers": "5"}', "answers"), ("[" * 100_000, "not JSON"),
    ('{"id": "a", "turns": ["x"]}\n{"id": "a", "turns": ["y"]}', "id of its own"),
])  # fmt: skip
def test_bad_sources_are_named(tmp_path, text, said):
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_prompts(str(file))


def test_unreadable_sources(tmp_path):
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    for source in (tmp_path / "b.jsonl", tmp_path / "none.txt"):
        with pytest.raises(InvalidInput, match="readable"):
            read_prompts(str(source))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="at least one"):
        read_prompts(str(tmp_path / "empty"))


@pytest.mark.parametrize(("text", "answers", "right"), [
    ("12 * 15 = 180, and 180 - 165 = 15.", ["15"], True), ("15 rolls of 180", ["15"], False),
    ("So there are 18,000 requests", ["18000"], True), ("no number", ["15"], False),
    ("It is  CANBERRA, of course", ["Canberra"], True), ("It is Sydney", ["Canberra"], False),
    ("either", ["or", "either"], True), ("-3.50", ["-3.5"], True), ("", ["x"], False),
])  # fmt: skip
def test_answers(text, answers, right):
    assert is_right(text, answers) == right


def spec(method: str, parts: tuple[Spec, ...] = (), **settings: str) -> Spec:
    """Return the spec that ``parse`` would give, without checks that its files fit the method."""
    return Spec(find(method), settings, parts=parts)


@pytest.mark.parametrize("naming", [
    lambda file: spec("eagle", head=file),
    lambda file: spec("suffix", (spec("suffix"), spec("prompt-lookup", table=file))),
    lambda file: spec("layer-skip", budget=f"specdec++(head={file!r})"),
], ids=["setting", "part of a fusion", "part in a setting"])  # fmt: skip
def test_files_within_a_spec(tmp_path: Path, naming) -> None:
    file = tmp_path / "own.bin"
    file.write_bytes(b"first")
    before = digests_of(naming(str(file)))
    assert list(before) == [str(file)]
    file.write_bytes(b"other")
    after = digests_of(naming(str(file)))
    assert list(after) == [str(file)]
    assert after != before


def test_what_comes_with_the_package_is_no_file() -> None:
    assert digests_of(parse("prompt-lookup(table='smollm2-135m-instruct')")) == {}
    assert digests_of(parse("threshold(block_length=8,cache=dual)")) == {}
