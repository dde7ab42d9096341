"""`paradecode generate`: answer one prompt, or a file of conversations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from paradecode.cli.console import out, print_json
from paradecode.cli.options import Decoding, Json, Loading, Sampling, grouped
from paradecode.core.errors import InvalidInput

LONGEST_PROMPT = 1 << 22
"""Most characters that are read from stdin."""


@grouped
def generate(
    loading: Loading,
    decoding: Decoding,
    sampling: Sampling,
    prompt: Annotated[str | None, typer.Argument(help="What to answer; - reads stdin.")] = None,
    raw: Annotated[bool, typer.Option(help="Continue the prompt; no chat template.")] = False,
    show_forwards: Annotated[
        bool, typer.Option(help="Colour tokens by forward, underline drafted ones.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL of {id, group, turns, max_tokens}.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer one prompt, or every conversation of a file."""
    from paradecode.cli.conversations import answer_turns, read_conversations
    from paradecode.report.records import completion_record
    from paradecode.report.terminal import colour_by_forward, legend

    spec, params = decoding.spec(), sampling.params()
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
        if not as_json and not show_forwards:
            for chunk in llm.stream(target, **params):
                out.print(chunk.text, end="", markup=False, highlight=False, soft_wrap=True)
            out.print()
            return
        completion = list(llm.stream(target, **params))[-1].completion
        assert completion is not None
        if as_json:
            print_json(completion_record(completion, llm))
        else:
            out.print(colour_by_forward(completion, llm.tokenizer.stream))
            out.print(legend(completion))
