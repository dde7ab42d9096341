"""`paradecode generate`: answer one prompt, or a file of conversations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from paradecode.cli.console import out, print_json
from paradecode.cli.options import (
    Constraining,
    Decoding,
    Json,
    Loading,
    SamplingOptions,
    SearchOptions,
    argument,
    grouped,
    option,
)
from paradecode.cli.trace import ALTERNATIVES, answered, check_page, write_page
from paradecode.completion import Chunk
from paradecode.core.errors import InvalidInput

LONGEST_PROMPT = 1 << 22
"""Most characters that are read from stdin."""


@grouped
def generate(
    loading: Loading,
    decoding: Decoding,
    sampling: SamplingOptions,
    constraining: Constraining,
    searching: SearchOptions,
    prompt: str | None = argument(None, "What to answer; - reads stdin."),
    raw: bool = option(False, "Continue the prompt; no chat template."),
    show_forwards: bool = option(False, "Colour tokens by forward, underline drafted ones."),
    prompts: Path | None = option(None, "JSONL of {id, group, turns, max_tokens}."),
    trace: Path | None = option(None, "Write a page that replays every forward."),
    as_json: Json = False,
) -> None:
    """Answer one prompt, or every conversation of a file."""
    from paradecode.cli.conversations import answer_turns, read_conversations
    from paradecode.report.records import completion_record
    from paradecode.report.trace import coloured, legend, trace_of

    def searched(target: Any) -> Iterator[Chunk]:
        """What a search has found, in one piece: nothing is certain before its end."""
        found = answered(llm, target, {**params, **wanted})
        yield Chunk(found.text, found.token_ids, found)

    search, wanted = searching.search, searching.params()
    spec, params = decoding.choice(), sampling.params()
    params["constraint"] = constraining.constraint()
    check_page(trace)
    if trace is not None and prompts is not None:
        raise InvalidInput("--trace", str(trace), "it shows one answer: give a prompt")
    if search is not None and prompts is not None:
        raise InvalidInput("--search", search, "it is for one answer: give a prompt")
    if trace is not None:
        params["logprobs"] = ALTERNATIVES
    if (prompt is None) == (prompts is None):
        raise InvalidInput("PROMPT", prompt, "give either a prompt or --prompts FILE")
    conversations = list(read_conversations(prompts)) if prompts else []
    if prompt == "-":
        prompt = sys.stdin.read(LONGEST_PROMPT)
    with loading.open(decoder=spec, draft_model=decoding.draft_model) as llm:
        for conversation in conversations:
            answer_turns(llm, conversation, params)
        if prompt is None:
            return
        messages = [{"role": "user", "content": prompt}]
        target: Any = prompt if raw or llm.chat_template is None else messages
        if raw and constraining.python:  # Names in the code before the answer count as well.
            params["constraint"]["value"]["code"] = prompt
        streamed, completion = not as_json and not show_forwards, None
        chunks = llm.stream(target, **params) if search is None else searched(target)
        for chunk in chunks:
            completion = chunk.completion
            if streamed:
                out.print(chunk.text, end="", markup=False, highlight=False, soft_wrap=True)
        assert completion is not None
        if streamed:
            out.print()
        elif as_json:
            print_json(completion_record(replace(completion, logprobs=None), llm))
        else:
            out.print(coloured(trace_of(completion, llm)["tokens"]))
            out.print(legend(completion))
        if trace is not None:
            write_page(trace_of(completion, llm), trace)
