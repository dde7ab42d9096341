"""The plugin for the command `llm`: its answers are the engine's."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from paradecode import LLM
from repository import ROOT

llm = pytest.importorskip("llm")
pytestmark = pytest.mark.wide
NAME = "paradecode/tiny-autoregressive"
ASKED = {"model": NAME, "max_tokens": 8}


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "plugins" / "llm-paradecode")
        import llm_paradecode

        yield llm_paradecode
    llm_paradecode.opened.cache_clear()
    del sys.modules["llm_paradecode"]


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    with LLM(NAME) as made:
        yield made


def test_it_registers_one_model(plugin: ModuleType) -> None:
    found: list[object] = []
    plugin.register_models(found.append)
    assert [model.model_id for model in found] == ["paradecode"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_the_engines(plugin: ModuleType, engine: LLM, stream: bool) -> None:
    response = plugin.Paradecode().prompt("sort: Ben Sam Art", stream=stream, **ASKED)
    answer = engine.chat("sort: Ben Sam Art", max_tokens=8)
    assert response.text() == answer.text
    assert response.output_tokens == answer.stats.generated


def test_a_conversation_has_what_was_said(plugin: ModuleType, engine: LLM) -> None:
    conversation = llm.Conversation(model=plugin.Paradecode())
    first = conversation.prompt("copy: Ben", system="Be brief.", **ASKED).text()
    second = conversation.prompt("copy: Sam", **ASKED).text()
    said = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "copy: Ben"},
        {"role": "assistant", "content": first}, {"role": "user", "content": "copy: Sam"},
    ]  # fmt: skip
    assert second == engine.chat(said, max_tokens=8).text


def test_a_wrong_setting_is_the_commands_error(plugin: ModuleType) -> None:
    response = plugin.Paradecode().prompt("Hi", model=NAME, decoder="sufix")
    with pytest.raises(llm.ModelError, match="did you mean suffix"):
        response.text()
