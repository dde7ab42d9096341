"""Each call accepts its documented inputs, and equivalent forms give the same results."""

import asyncio
import json
import re
from html import unescape
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from paradecode import LLM, SamplingParams
from paradecode.core.errors import InvalidInput
from paradecode.llm import progress
from paradecode.llm.settings import SamplingSettings

TEXT, OTHER = "sort: Ben Sam Art", "copy: Tom Ben"
SHOWS_TOOLS = "{{ tools[0]['name'] if tools else 'none' }} {{ messages[0]['content'] }}"


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_text_is_what_the_user_says(llm: LLM) -> None:
    answer = llm.chat(TEXT, max_tokens=8)
    assert answer.prompt_token_ids == llm.chat_tokens(said(TEXT))
    assert answer.token_ids == llm.chat(said(TEXT), max_tokens=8).token_ids


def test_a_list_of_texts_and_conversations_is_a_batch(llm: LLM) -> None:
    one, other = llm.chat([TEXT, said(OTHER)], max_tokens=8)
    assert one.token_ids == llm.chat(TEXT, max_tokens=8).token_ids
    assert other.token_ids == llm.chat(OTHER, max_tokens=8).token_ids


def test_a_system_message_stands_first(llm: LLM) -> None:
    whole = [{"role": "system", "content": OTHER}, *said(TEXT)]
    answer = llm.chat(TEXT, system=OTHER, max_tokens=1)
    assert answer.prompt_token_ids == llm.chat_tokens(whole)
    with pytest.raises(InvalidInput, match="system"):
        llm.chat(whole, system=OTHER)


def test_a_template_of_the_call_shows_tools(llm: LLM) -> None:
    tools = [{"name": "Sam"}]
    answer = llm.chat(TEXT, tools=tools, chat_template=SHOWS_TOOLS, max_tokens=1)
    assert answer.prompt_token_ids == llm.encode(f"Sam {TEXT}")
    with pytest.raises(InvalidInput, match="shows no tools"):
        llm.chat(TEXT, tools=tools)


@pytest.mark.wide
def test_a_template_of_a_model_is_a_file_or_a_text(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("sort: {{ messages[0]['content'] }}")
    for given in (path, str(path), path.read_text()):
        with LLM("paradecode/tiny-autoregressive", threads=1, chat_template=given) as made:
            assert made.chat_tokens(said("Ben")) == made.encode("sort: Ben")
    with pytest.raises(InvalidInput, match="chat_template"):
        LLM("paradecode/tiny-autoregressive", chat_template="rag")


@pytest.mark.parametrize("wrong", [5, [], [5], [said(TEXT), {"role": "user"}], {"role": "user"}])
def test_what_is_no_conversation_is_refused(llm: LLM, wrong: object) -> None:
    with pytest.raises(InvalidInput, match="messages"):
        llm.chat(wrong)  # type: ignore[call-overload]


def test_complete_continues_texts_and_token_ids(llm: LLM) -> None:
    ids = llm.encode(TEXT)
    alone = llm.complete(TEXT, max_tokens=6)
    assert alone.prompt_token_ids == ids
    assert llm.complete(ids, max_tokens=6).token_ids == alone.token_ids
    assert llm.complete(np.array(ids), max_tokens=6).token_ids == alone.token_ids
    for several in ([TEXT], [ids], np.array([ids])):
        assert [each.token_ids for each in llm.complete(several, max_tokens=6)] == [alone.token_ids]
    assert llm.complete([], max_tokens=6) == []


def test_generate_warns_and_completes(llm: LLM) -> None:
    with pytest.warns(DeprecationWarning, match="use complete for that, or chat") as told:
        made = llm.generate([TEXT], max_tokens=6)
    assert [each.token_ids for each in made] == [llm.complete(TEXT, max_tokens=6).token_ids]
    assert told[0].filename == __file__


def test_settings_of_editors_are_those_of_the_parameters() -> None:
    assert get_type_hints(SamplingSettings) == get_type_hints(SamplingParams)


def test_answers_of_asyncio_are_the_same(llm: LLM) -> None:
    async def both() -> list[list[int]]:
        made = await asyncio.gather(*(llm.achat(text, max_tokens=8) for text in (TEXT, OTHER)))
        return [each.token_ids for each in made]

    assert asyncio.run(both()) == [each.token_ids for each in llm.chat([TEXT, OTHER], max_tokens=8)]


def test_a_stream_of_asyncio_is_the_same_and_can_be_closed(llm: LLM) -> None:
    async def read() -> list[int]:
        return [
            token async for chunk in llm.astream(TEXT, max_tokens=8) for token in chunk.token_ids
        ]

    async def close() -> bool:
        chunks = llm.astream(TEXT, max_tokens=400, ignore_eos=True)
        await anext(chunks)
        assert llm.engine.busy
        await chunks.aclose()
        return llm.engine.busy

    assert asyncio.run(read()) == llm.chat(TEXT, max_tokens=8).token_ids
    assert not asyncio.run(close())


def test_a_cancelled_task_ends_its_request(llm: LLM) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(llm.achat(TEXT, max_tokens=400, ignore_eos=True))
        while not llm.engine.busy:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not llm.engine.busy

    asyncio.run(cancel())


def test_what_asyncio_asks_wrongly_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidInput, match="one output"):
        asyncio.run(llm.achat(TEXT, n=2))


def test_a_completion_goes_through_json(llm: LLM) -> None:
    whole = llm.chat(TEXT, max_tokens=8, n=2, logprobs=1)
    read = json.loads(json.dumps(whole.to_dict()))
    assert read["token_ids"] == whole.token_ids
    assert [token for step in read["trace"] for token in step["tokens"]] == whole.token_ids
    assert read["stats"]["forwards"] == whole.stats.forwards
    assert [entry["token"] for entry in read["logprobs"]] == whole.token_ids
    assert [other["text"] for other in read["alternatives"]] == [whole.alternatives[0].text]
    assert set(read) == set(vars(whole))


def test_a_notebook_shows_which_forward_decided_what(llm: LLM) -> None:
    answer = llm.chat("copy: Ben & Sam Ben & Sam", max_tokens=12, decoder="suffix(budget=fixed)")
    assert "".join(commit.text for commit in answer.commits) == answer.text
    assert [token for commit in answer.commits for token in commit.tokens] == answer.token_ids
    forwards = {commit.forward for commit in answer.commits}
    assert max(forwards) == answer.stats.forwards
    page = answer._repr_html_()
    assert page.count("<i ") == len(forwards)
    spans = re.findall(r"<span[^>]*>([^<]*)</span>", page)
    assert unescape("".join(spans)) == answer.text
    assert len(repr(answer)) < 200
    assert (
        repr(llm)
        == "LLM('paradecode/tiny-autoregressive', decoder='prompt-lookup', backend='native')"
    )


def test_a_stream_has_the_same_pieces(llm: LLM) -> None:
    *_, last = llm.stream(TEXT, max_tokens=8)
    assert last.completion.commits == llm.chat(TEXT, max_tokens=8).commits


def test_progress_counts_what_has_ended(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    llm.chat([TEXT, OTHER], max_tokens=8, progress=lambda *at: seen.append(at))
    assert seen == sorted(seen)
    assert seen[-1] == (2, 2)
    llm.chat([TEXT, OTHER], max_tokens=8, progress=True)
    assert capsys.readouterr().err == ""  # It is soon done.
    monkeypatch.setattr(progress, "SOON", 0)
    llm.chat([TEXT, OTHER], max_tokens=8, progress=True)
    assert "answers" in capsys.readouterr().err
