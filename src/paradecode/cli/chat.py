"""`paradecode chat`: a conversation in the terminal."""

from __future__ import annotations

import sys

from paradecode.cli.console import err, out
from paradecode.cli.options import Decoding, Loading, SamplingOptions, grouped, option
from paradecode.core.errors import InvalidInput

HELP = """\
/help   this list
/clear  forget the conversation
/exit   leave, like an empty line or Ctrl-D
Ctrl-C  stops an answer"""


@grouped
def chat(
    loading: Loading,
    decoding: Decoding,
    sampling: SamplingOptions = SamplingOptions(max_tokens=1024, temperature=0.7, top_p=0.95),  # noqa: B008
    system: str | None = option(None, "Begin the conversation with this system message."),
) -> None:
    """Talk to a model. An empty line or Ctrl-D ends the chat; Ctrl-C stops an answer."""
    spec, params = decoding.choice(), sampling.params()
    decoding.check_draft_model()
    if sys.stdin is None:
        raise InvalidInput("standard input", "closed", "open it: your messages come from there")
    with loading.open(decoder=spec, draft_model=decoding.draft_model) as llm:
        out.print(f"[dim]{llm.model} on {llm.backend.name}, {llm.decoder}[/]")
        out.print("[dim]An empty line leaves, Ctrl-C stops an answer, and /help says more.[/]")
        first = [{"role": "system", "content": system}] if system else []
        messages = [*first]
        while True:
            try:
                text = out.input("[bold cyan]> [/]")
            except (EOFError, KeyboardInterrupt):
                break
            command = text.strip()
            if command in ("", "/exit"):
                break
            if command == "/clear":
                messages = [*first]
                continue
            if command.startswith("/") and len(command.split()) == 1:
                said = "" if command == "/help" else f"{command} is no command:\n"
                out.print(said + HELP, style="dim", markup=False, highlight=False)
                continue
            messages.append({"role": "user", "content": text})
            answer = ""
            try:
                for chunk in llm.stream(messages, **params):
                    answer += chunk.text
                    out.print(chunk.text, end="", markup=False, highlight=False, soft_wrap=True)
                    if chunk.completion:
                        stats = chunk.completion.stats
                        out.print(
                            f"\n[dim]{stats.tokens_per_second:.0f} tokens/s, "
                            f"{stats.tokens_per_forward:.2f} tokens a forward[/]"
                        )
            except KeyboardInterrupt:
                out.print("\n[dim]stopped[/]")
            except InvalidInput as error:  # Probably the context is full.
                err.print(f"[red]{error}[/]")
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": answer})
