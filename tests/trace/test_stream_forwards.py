"""A stream, the trace and the terminal agree on which forward decided which token."""

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from paradecode.llm import LLM
from paradecode.trace import bracketed, trace_of
from paradecode.trace.terminal import visible
from tiny_folder import write_folder

PROMPT = "abcabcabcabc"
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "greedy", {}),
    ("llama", "prompt-lookup(budget=fixed)", {}),
    ("llama", "suffix(budget=fixed)", {}),
    ("llada", "static", {}),
    ("llada", "threshold(threshold=0.02)", {}),
    ("llada", "guided", {}),  # Two forwards for each commit.
    ("sdar", "assd", {}),  # Several commits of one forward.
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: write_folder(place / kind, kind) for kind, _, _ in RUNS}


def told(llm: LLM, decoder: str, **params: Any) -> tuple[list[Any], Any]:
    """Return the chunks of a stream, and its completion."""
    chunks = list(
        llm.stream(llm.encode(PROMPT), decoder=decoder, max_tokens=40, ignore_eos=True, **params)
    )
    for chunk in chunks:
        assert "".join(commit.text for commit in chunk.commits) == chunk.text
        assert [token for commit in chunk.commits for token in commit.tokens] == chunk.token_ids
    whole = chunks[-1].completion
    assert chunks[-1].forward == whole.stats.forwards
    return chunks, whole


@pytest.mark.parametrize(("kind", "decoder", "params"), RUNS, ids=[run[1] for run in RUNS])
def test_a_stream_says_what_the_trace_says(models, kind, decoder, params):
    with LLM(str(models[kind]), threads=1) as llm:
        chunks, whole = told(llm, decoder, **params)
        tokens = trace_of(whole, llm)["tokens"]
    commits = [commit for chunk in chunks for commit in chunk.commits]
    by_token = [commit.forward for commit in commits for _ in commit.tokens]
    assert by_token == [token["forward"] for token in tokens]
    by_character = [(commit.forward, sign) for commit in commits for sign in commit.text]
    assert by_character == [(token["forward"], s) for token in tokens for s in token["text"]]
    if kind == "llama":
        assert sorted(set(by_token)) == list(range(1, whole.stats.forwards + 1))
        shown = groupby(by_character, lambda each: each[0])
        pieces = ((forward, "".join(sign for _, sign in signs)) for forward, signs in shown)
        said = "".join(f"[{forward}|{visible(text)}]" for forward, text in pieces)
        assert bracketed(tokens).plain == said
    if decoder in ("greedy", RUNS[1][1]):
        assert any(len({commit.forward for commit in chunk.commits}) > 1 for chunk in chunks)


def test_text_that_was_held_back_keeps_its_forward(models: dict[str, Path]) -> None:
    """Text that is held back keeps the number of its forward.

    Each character of the answer may begin a stop text, which never comes.
    """
    with LLM(str(models["llama"]), threads=1) as llm:
        _, plain = told(llm, "greedy")
        stops = [sign + "\u2603" for sign in sorted(set(plain.text))][:4]
        chunks, whole = told(llm, "greedy", stop=stops)
        tokens = trace_of(whole, llm)["tokens"]
    commits = [commit for chunk in chunks for commit in chunk.commits]
    assert any(commit.text and not commit.tokens for commit in commits)
    by_character = [(commit.forward, sign) for commit in commits for sign in commit.text]
    assert by_character == [(token["forward"], s) for token in tokens for s in token["text"]]
