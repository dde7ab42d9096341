"""`paradecode generate`: answer one prompt, or a file of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from paradecode.cli.console import err, out, print_json
from paradecode.cli.options import (
    Constraining,
    Decoding,
    Json,
    Loading,
    SamplingOptions,
    SearchOptions,
    argument,
    flag,
    grouped,
    option,
)
from paradecode.cli.outputs import writable
from paradecode.cli.prompt import read_prompt
from paradecode.cli.trace import ALTERNATIVES, answered, said, write_page
from paradecode.completion import Chunk, Completion
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    from paradecode.llm import LLM

SHORT_CANVAS = 32
"""Number of canvas positions that every diffusion model can fill."""


@grouped
def generate(
    loading: Loading,
    decoding: Decoding,
    sampling: SamplingOptions,
    constraining: Constraining,
    searching: SearchOptions,
    prompt: str | None = argument(None, "Answer this prompt; - reads it from stdin."),
    raw: bool = option(False, "Continue the prompt as it is, without the chat template."),
    show_forwards: bool = option(False, "Colour tokens by forward, underline drafted ones."),
    prompts: Path | None = option(None, "Answer a JSONL file of {id, group, turns, max_tokens}."),
    trace: Path | None = option(None, "Write a page that replays every forward."),
    as_json: Json = False,
) -> None:
    """Answer one prompt, or every conversation of a file."""
    from paradecode.cli.conversations import answer_turns, read_conversations
    from paradecode.cli.records import completion_record
    from paradecode.trace import trace_of

    def searched(target: str | list[int]) -> Iterator[Chunk]:
        """Yield the result of a search as one chunk, because nothing is final before its end."""
        found = answered(llm, target, {**params, **wanted})
        yield Chunk(found.text, found.token_ids, found)

    search, wanted = searching.search, searching.params()
    spec, params = decoding.choice(), sampling.params()
    params["constraint"] = constraining.constraint()
    if search is None:  # A search may use it, whatever the method is.
        decoding.check_draft_model()
    if trace is not None:
        writable("--trace", trace)
        params["logprobs"] = ALTERNATIVES
    if (prompt is None) == (prompts is None):
        fix = 'give either a prompt in quotes ("Name three metals.") or --prompts FILE'
        raise InvalidInput("PROMPT", prompt, fix)
    if as_json and show_forwards:
        raise InvalidInput("--show-forwards", "with --json", "leave one of them out")
    if prompts is not None:
        _refuse_with_prompts(trace=trace, search=search, show_forwards=show_forwards, raw=raw)
    conversations = read_conversations(prompts) if prompts is not None else []
    if prompt is not None:
        prompt = read_prompt("PROMPT", prompt)
    with loading.open(decoder=spec, draft_model=decoding.draft_model) as llm:
        answered_all = [answer_turns(llm, each, params) for each in conversations]
        if prompt is None:
            raise typer.Exit(0 if all(answered_all) else 1)
        target = said(llm, prompt, raw)
        if raw and constraining.python:  # The prompt's own code is read, too.
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
            if completion.finish_reason == "length" and err.is_terminal:
                err.print("[dim]The answer was cut; --max-tokens allows more.[/]")
        elif as_json:
            print_json(completion_record(replace(completion, logprobs=None), llm))
        else:
            _print_forwards(completion, llm)
        if not completion.text and llm.decoder.method.family == "diffusion":
            err.print(
                f"[yellow]The answer is empty. A small model may write nothing on a canvas of "
                f"{params['max_tokens']} tokens: try --max-tokens {SHORT_CANVAS}.[/]"
            )
        if trace is not None:
            write_page(trace_of(completion, llm), trace)


def _refuse_with_prompts(**given: Path | str | bool | None) -> None:
    """Raise InvalidInput for an option that works for a single answer only.

    Options whose value is None or False were not given.
    """
    for name, value in given.items():
        if value:
            shown = "with --prompts" if value is True else str(value)
            fix = "it is for one answer: give a prompt, not --prompts"
            raise InvalidInput(flag(name), shown, fix)


def _print_forwards(completion: Completion, llm: LLM) -> None:
    """Print the text by forwards: in colours, or in brackets if the terminal has no colours."""
    from paradecode.trace import bracketed, coloured, legend, trace_of

    has_colours = out.color_system is not None and not out.no_color
    shown = (coloured if has_colours else bracketed)(trace_of(completion, llm)["tokens"])
    out.print(shown, legend(completion, has_colours), sep="\n", soft_wrap=not has_colours)
