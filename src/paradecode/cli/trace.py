"""`paradecode trace`: replay how one answer was decoded, in a browser or in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paradecode.cli.console import out, print_json
from paradecode.cli.options import (
    Decoding,
    Json,
    Loading,
    SamplingOptions,
    SearchOptions,
    grouped,
    option,
)
from paradecode.cli.outputs import writable
from paradecode.cli.prompt import read_prompt
from paradecode.completion import Completion
from paradecode.core.errors import InvalidInput, reason

if TYPE_CHECKING:
    from paradecode.llm import LLM
    from paradecode.trace import Trace

ALTERNATIVES = 5
"""Number of most likely tokens that a trace keeps at each position. More make the file larger."""


@grouped
def trace(
    loading: Loading,
    decoding: Decoding,
    sampling: SamplingOptions,
    searching: SearchOptions,
    prompt: Annotated[str, typer.Argument(help="Answer this prompt; - reads it from stdin.")],
    output: Path | None = option(None, "Write the page to this file. [trace.html]", "--output -o"),
    terminal: bool = option(False, "Print the forwards in colour; write no page.", "--terminal"),
    raw: bool = option(False, "Continue the prompt as it is, without the chat template."),
    as_json: Json = False,
) -> None:
    """Answer a prompt and write a page that replays every forward."""
    from paradecode.trace import terminal_view, trace_of

    spec = decoding.choice()
    params = {**sampling.params(), **searching.params(), "logprobs": ALTERNATIVES}
    if searching.search is None:  # A search may use it, whatever the method is.
        decoding.check_draft_model()
    if output is None and not terminal and not as_json:
        output = Path("trace.html")
    if output is not None:
        writable("--output", output)
    prompt = read_prompt("PROMPT", prompt)
    with loading.open(decoder=spec, draft_model=decoding.draft_model) as llm:
        completion = answered(llm, said(llm, prompt, raw), params)
        record = trace_of(completion, llm)
    if as_json:
        print_json(record)
    if terminal:
        out.print(terminal_view(record))
    if output is not None:
        write_page(record, output)
        if not as_json:
            out.print(str(output), markup=False, highlight=False, soft_wrap=True)


def said(llm: LLM, prompt: str, raw: bool) -> str | list[int]:
    """Return the message of a user, or token ids that the model continues.

    Token ids are for a raw text, and for a model without a chat template.
    """
    return llm.encode(prompt) if raw or llm.chat_template is None else prompt


def answered(llm: LLM, target: str | list[int], params: Mapping[str, Any]) -> Completion:
    """Return the answer to a target that :func:`said` has returned."""
    if isinstance(target, str):
        return llm.chat(target, **params)
    return llm.complete(target, **params)


def write_page(record: Trace, path: Path) -> None:
    """Write the page that replays a trace.

    Raises:
        InvalidInput: if the file cannot be written.
    """
    from paradecode.trace import page

    try:
        path.write_text(page(record), "utf-8")
    except OSError as error:
        raise InvalidInput("page", str(path), f"give a writable file ({reason(error)})") from None
