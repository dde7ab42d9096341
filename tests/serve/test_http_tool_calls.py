"""Tool calls are separated from text in the same way, however the text is cut into chunks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from paradecode.models.chat import ChatTemplate
from paradecode.serve.tool_calls import MOST_HEAD, PIECE, CallReader, message

NAMES = ["weather", "now"]
CALL = '{"name": "weather", "arguments": {"city": "Os}lo \\" {", "n": [1, {"a": {}}]}}'
ARGUMENTS = '{"city": "Os}lo \\" {", "n": [1, {"a": {}}]}'


def read(pieces: list[str], parallel: bool = True) -> dict[str, Any]:
    reader = CallReader(NAMES, parallel)
    deltas = [delta for piece in pieces for delta in reader.feed(piece)]
    return message([*deltas, *reader.finish()])


def wide(beyond: int) -> str:
    """Return a call whose beginning has ``beyond`` more characters than is allowed."""
    head = '"name":"now","arguments":'
    return "{" + " " * (MOST_HEAD + beyond - 1 - len(head)) + head + "5}"


CASES = [
    ("plain text", "plain text", []),
    ("", "", []),
    ("  \n ", "  \n ", []),
    (CALL, None, [("weather", ARGUMENTS)]),
    (f"\n {CALL} \n", None, [("weather", ARGUMENTS)]),
    (f"<tool_call>\n{CALL}\n</tool_call>", None, [("weather", ARGUMENTS)]),
    (f"Let me see.\n<tool_call>{CALL}</tool_call>", "Let me see.\n", [("weather", ARGUMENTS)]),
    (f"<tool_call>{CALL}</tool_call>\n<tool_call>\n" + '{"name":"now","arguments":{}}</tool_call>',
     None, [("weather", ARGUMENTS), ("now", "{}")]),
    (f"{CALL}\n{CALL} done", " done", [("weather", ARGUMENTS)] * 2),
    ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
    ('{"city": "Oslo"}', '{"city": "Oslo"}', []),
    ('{"na', '{"na', []),
    ("a < b <tool", "a < b <tool", []),
    ("<tool_call>no</tool_call>", "<tool_call>no</tool_call>", []),
    ("<tool_call><tool_call>" + '{"name":"now","arguments":{}}', "<tool_call>", [("now", "{}")]),
    (f"text first {CALL}", f"text first {CALL}", []),
    ('{ "name" : "now" , "arguments" :  [ 1, 2 ] }', None, [("now", "[ 1, 2 ]")]),
    ('{"name": "now", "arguments": {"a": "b', None, [("now", '{"a": "b')]),
    ('{"name": "now", "arguments": 5}', None, [("now", "5")]),
    (" " * MOST_HEAD + CALL, None, [("weather", ARGUMENTS)]),
    (" " * (MOST_HEAD + 1) + CALL, " " * (MOST_HEAD + 1) + CALL, []),
    (CALL + " " * (MOST_HEAD + 1) + "</tool_call>", " " * (MOST_HEAD + 1) + "</tool_call>",
     [("weather", ARGUMENTS)]),
    (wide(0), None, [("now", "5")]),
    (wide(1), wide(1), []),
    ("x" * PIECE + f"<tool_call>{CALL}", "x" * PIECE, [("weather", ARGUMENTS)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "calls"), CASES, ids=range(len(CASES)))
def test_every_way_to_cut_a_text(
    text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    pieces = [[text], list(text), [text[i : i + 3] for i in range(0, len(text), 3)]]
    for cut in pieces:
        found = read(cut)
        assert found["content"] == content
        got = [call["function"] for call in found.get("tool_calls", [])]
        assert [(call["name"], call["arguments"]) for call in got] == calls


def test_arguments_are_streamed_before_the_call_ends() -> None:
    reader = CallReader(NAMES)
    reader.feed('{"name": "now", "arguments": {"a": "')
    (delta,) = reader.feed("some text")
    assert delta["tool_calls"][0]["function"]["arguments"] == "some text"


def test_each_call_has_an_id_of_its_own() -> None:
    found = read([f"{CALL}{CALL}"])["tool_calls"]
    assert len({call["id"] for call in found}) == 2


@pytest.mark.parametrize(
    "start", ["{", "<tool_call>", "<tool_call>{", "", CALL, CALL + "<tool_call>"]
)
def test_little_is_held_back(start: str) -> None:
    """Endless white space is not held back.

    Held text is searched again with each chunk, so much of it would stop the front for seconds.
    """
    reader = CallReader(NAMES)
    reader.feed(start)
    for _ in range(2 * MOST_HEAD):
        reader.feed(" ")
        assert len(reader._held) <= MOST_HEAD + len("<tool_call>")
    assert reader.feed(" ") == [{"content": " "}]


def test_a_long_text_is_read_in_linear_time() -> None:
    began = time.process_time()
    found = read(["<tool_call>" * 25_000])  # Searching the rest again for each takes 31 s.
    assert found["content"] == "<tool_call>" * 25_000
    assert time.process_time() - began < 5


CALLS = f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\n{CALL} So."


@pytest.mark.parametrize("pieces", [[CALLS], list(CALLS)], ids=["whole", "cut"])
def test_only_the_first_call_is_told_where_there_may_be_one(pieces: list[str]) -> None:
    found = read(pieces, parallel=False)
    (call,) = found["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": ARGUMENTS}
    assert found["content"] == " So."
    assert len(read(pieces)["tool_calls"]) == 3


@given(
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "{", "}", '"name"', ":", '"now"', ",", '"arguments"',
             "{}", " ", "x", '{"name":"now","arguments":', '"', "\\", "<tool"]
        ),
        max_size=12,
    ),
    st.data(),
)  # fmt: skip
def test_random_texts_read_the_same_in_any_chunks(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    whole, cut = read([text]), read(pieces)
    for found in (whole, cut):
        for call in found.get("tool_calls", []):
            del call["id"]
    assert whole == cut


VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=8) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_any_json_survives_as_arguments(arguments: Any) -> None:
    text = json.dumps({"name": "now", "arguments": {"x": arguments}})
    (call,) = read(list(text))["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": arguments}


CITY = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}
FUNCTIONS = {"weather": CITY, "now": None}
ROME = {"city": "Rome", "n": 2}
SAID = json.dumps(ROME)
DRESSES = {
    "Llama 3.1": f'<|python_tag|>{{"name": "weather", "parameters": {SAID}}}',
    "Llama 3.1, bare": f'{{"type": "function", "name": "weather", "parameters": {SAID}}}',
    "Llama 3.1, tagged": f"<function=weather>{SAID}</function>",
    "Llama 4": "[weather(city='Rome', n=2)]",
    "Qwen 2.5": f'<tool_call>\n{{"name": "weather", "arguments": {SAID}}}\n</tool_call>',
    "Qwen3-Coder": "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
                   "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
    "GLM 4.5": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
               "<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "Mistral": f'[TOOL_CALLS] [{{"name": "weather", "arguments": {SAID}, "id": "abcdefghi"}}]',
    "Mistral, marks hidden": f'[{{"name": "weather", "arguments": {SAID}}}]',
    "Mistral 3": f"[TOOL_CALLS]weather[ARGS]{SAID}",
    "Mistral 3, marks hidden": f"weather{SAID}",
    "Phi 4 mini": f'<|tool_call|>[{{"name": "weather", "arguments": {SAID}}}]<|/tool_call|>',
    "Granite 3": f'<|tool_call|>[{{"name": "weather", "arguments": {SAID}}}]',
    "LFM 2": "<|tool_call_start|>[weather(city=\"Rome\", n=2)]<|tool_call_end|>",
    "Gemma 3": '```tool_code\nweather(city="Rome", n=2)\n```',
    "Command R": f'```json\n[\n  {{"tool_name": "weather", "parameters": {SAID}}}\n]\n```',
    "a fence": f'```json\n{{"name": "weather", "arguments": {SAID}}}\n```',
    "a bare fence": f'```\n{{"name": "weather", "arguments": {SAID}}}\n```',
    "OpenAI": f'{{"type": "function", "function": {{"name": "weather", "arguments": {SAID}}}}}',
}  # fmt: skip


def told(pieces: list[str], **options: Any) -> dict[str, Any]:
    reader = CallReader(FUNCTIONS, **options)
    deltas = [delta for piece in pieces for delta in reader.feed(piece)]
    return message([*deltas, *reader.finish()])


@pytest.mark.parametrize("text", DRESSES.values(), ids=DRESSES)
@pytest.mark.parametrize("before", ["", "Let me see.\n"])
def test_a_call_in_every_familys_dress_at_every_split(text: str, before: str) -> None:
    if before and text[0] in "{[w" and not text.startswith("[TOOL_CALLS]"):
        assert told([before + text])["content"] == before + text  # Without a mark it is text.
        return
    whole = before + text
    cuts = [[whole[:at], whole[at:]] for at in range(len(whole))]
    for pieces in ([whole], list(whole), *cuts):
        found = told(pieces)
        assert (found["content"] or "").strip() == before.strip(), pieces
        (call,) = found["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == ROME


TEMPLATES = {
    "Qwen 2.5": '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n'
                "</tool_call>",
    "Qwen3-Coder": "<tool_call>\n<function={{ f.name }}>\n"
                   "{% for key, value in f.arguments | items %}<parameter={{ key }}>\n"
                   "{{ value }}\n</parameter>\n{% endfor %}</function>\n"
                   "</tool_call>",
    "Llama 3.1": '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    "Mistral": '[TOOL_CALLS] [{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, '
               '"id": "123456789"}]',
    "GLM 4.5": "<tool_call>{{ f.name }}\n{% for key, value in f.arguments | items %}<arg_key>"
               "{{ key }}</arg_key>\n<arg_value>{{ value if value is string else value | tojson }}"
               "</arg_value>\n{% endfor %}</tool_call>",
}  # fmt: skip
"""Templates that write an earlier call ``f`` as these families do."""


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
@given(city=st.text(alphabet='ab "\\{}[]:,é', max_size=8).map(str.strip), n=st.integers())
def test_what_a_template_writes_is_parsed_back(source: str, city: str, n: int) -> None:
    whole = "{% set f = messages[1].tool_calls[0].function %}" + source
    call = {
        "type": "function",
        "function": {"name": "weather", "arguments": {"city": city, "n": n}},
    }
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}]
    text = ChatTemplate(whole).render(said, add_generation_prompt=False)
    for pieces in ([text], list(text)):
        (found,) = told(pieces)["tool_calls"]
        assert found["function"]["name"] == "weather"
        assert json.loads(found["function"]["arguments"]) == {"city": city, "n": n}


@pytest.mark.parametrize(
    "text",
    ["```python\nprint(weather)\n```", '```json\n{"city": "Rome"}\n```', "[weather of Rome]",
     "weather is nice {1}", "<function=other>{}</function>", "[other(a=1)]", "[weather(Rome)]",
     "<tool_call>weather\n<arg_key>a</arg_key> 5</tool_call>", "[1, 2]", "```", "<function=",
     "<tool_call><function=weather>\n<parameter=city>\nRome", "weather(city='Rome')"],
)  # fmt: skip
def test_what_only_looks_like_a_call(text: str) -> None:
    for pieces in ([text], list(text)):
        found = told(pieces)
        assert found["content"] == text
        assert "tool_calls" not in found


def test_several_calls_in_one_list() -> None:
    one = f'{{"name": "weather", "arguments": {SAID}}}'
    for text in (f"[{one}, {one}]", f"[TOOL_CALLS] [{one},\n{one}]", f"{one}; {one}",
                 f"```json\n[{one}, {one}]\n```", "[weather(city='a'), weather(n=1)]",
                 f"[TOOL_CALLS]weather[ARGS]{SAID}[TOOL_CALLS]weather{SAID}"):  # fmt: skip
        for pieces in ([text], list(text)):
            assert len(told(pieces)["tool_calls"]) == 2, text


THOUGHT = "<think>\nHm, Rome.\n</think>\n\n"


@pytest.mark.parametrize("call", [False, True])
def test_thoughts_are_told_apart(call: bool) -> None:
    rest = DRESSES["Qwen 2.5"] if call else "It is Rome."
    for text in (THOUGHT + rest, "\n" + THOUGHT + rest):
        for pieces in ([text], list(text), [text[:9], text[9:]]):
            found = told(pieces, thoughts=True)
            assert found["reasoning_content"] == "Hm, Rome.\n"
            assert (found["content"] or "") == ("" if call else rest)
            assert bool(found.get("tool_calls")) is call
    assert told(["a <think>b</think>"], thoughts=True)["content"] == "a <think>b</think>"
    assert told(["<think>a"], thoughts=True)["reasoning_content"] == "a"
    assert told(["<thi"], thoughts=True)["content"] == "<thi"
    assert told([THOUGHT])["content"] == THOUGHT
