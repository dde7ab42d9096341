"""The server writes the text between a prefix and a suffix, and has llama.cpp's other routes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from http_server import FakePool, Running, events, ready, running, settings

from paradecode.serve.keys import Key

MARKS = ["<P>", "<S>", "<M>"]


@pytest.fixture(autouse=True)
def marks(server: Running) -> None:
    server.pool.ready["caller"] = replace(ready("caller"), fim=MARKS)


def test_a_suffix_of_a_completion(server: Running) -> None:
    asked = {"model": "caller", "prompt": ["a =", "b ="], "suffix": "\nprint(a)"}
    assert server.post("/v1/completions", asked).status_code == 200
    texts = [request.prompt.text for request in server.pool.seen]
    assert texts == ["<P>a =<S>\nprint(a)<M>", "<P>b =<S>\nprint(a)<M>"]
    for wrong in ({"model": "tiny"}, {"echo": True}, {"prompt": [1, 2]}):
        error = server.post("/v1/completions", {**asked, **wrong}).json()["error"]
        assert error["param"] == "suffix"


def test_infill_whole_and_streamed(server: Running) -> None:
    asked = {
        "model": "caller", "input_prefix": "a =", "input_suffix": ";", "prompt": " 1",
        "n_predict": 5, "cache_prompt": True,
        "input_extra": [{"filename": "b.py", "text": "b = 2"}],
    }  # fmt: skip
    whole = server.post("/infill", asked).json()
    assert (whole["content"], whole["stop"], whole["stop_type"]) == ("Hello", True, "eos")
    (request,) = server.pool.seen
    assert request.prompt.text == "<P>b.py\nb = 2\na =<S>;<M> 1"
    assert request.sampling["max_tokens"] == 5
    parts = [json.loads(data) for data in events(server.post("/infill", {**asked, "stream": True}))]
    assert "".join(part["content"] for part in parts) == "Hello"
    assert [part["stop"] for part in parts] == [False, False, False, True]
    assert server.post("/infill", {**asked, "model": "tiny"}).status_code == 400


def test_props_and_slots_show_no_text(server: Running) -> None:
    server.chat(messages=[{"role": "user", "content": "a secret"}])
    shown = server.client.get("/props?model=caller").json()
    assert shown["default_generation_settings"] == {"n_ctx": 512}
    slots = server.client.get("/slots").json()
    assert len(slots) == shown["total_slots"] > 0
    assert set(slots[0]) == {"id", "n_ctx", "is_processing"}
    assert server.client.get("/props?model=nothing").status_code == 404


def test_only_an_operator_sees_slots() -> None:
    keys = (
        Key(name="one", key="a-long-key", operator=True),
        Key(name="other", key="another-key", operator=False),
    )
    with running(settings(keys=keys), FakePool()) as server:
        other = {"authorization": "Bearer another-key"}
        assert server.client.get("/slots").status_code == 200
        assert server.client.get("/slots", headers=other).status_code == 403
