"""The demonstration: a race between plain and parallel decoding on three prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paradecode.completion import Completion
from paradecode.llm import LLM
from paradecode.methods.specs import Spec
from paradecode.models.catalogue import DEFAULT
from paradecode.prompts import encoder
from paradecode.timing.comparison import Comparison, is_bounded, speed
from paradecode.timing.doubts import BUSY, SUSPICIOUS, marked
from paradecode.timing.other_load import QUIET, OtherLoad
from paradecode.timing.warm_up import warm_up
from paradecode.trace import coloured, trace_of
from paradecode.trace.record import piece
from paradecode.trace.terminal import colour_of, visible

RECORD = """\
{
  "name": "Alice Martin",
  "city": "Paris",
  "start": "2024-03-01",
  "end": "2024-09-30",
  "room": "B12",
  "email": "alice.martin@example.com"
}"""

PROMPTS = {
    "open question": "What are the benefits of reading books?",
    "edit": f'Replace "Paris" with "London" in this text:\n\n{RECORD}',
}
CANVAS, CANVAS_PROMPT, CANVAS_TOKENS = "diffusion canvas", "reverse: Tom Ben Sam Art Ann Joe", 7
"""The last race, its prompt, and its canvas of seven positions, for six names and the end.

On a longer canvas, plain decoding would also fill positions after the end, and would look slower
than it is.
"""
FRAME = 0.04
"""Seconds between two pictures of a text. A canvas is drawn after each forward."""
RULES = (
    "Each side decodes alone, one after the other, so that neither slows the other. Its clock "
    "counts decoding: not the drawing of this screen and, but for the canvas, not the prompt."
)
SMALL = "A model of 135 million parameters answers the texts: it is fast, and it is not clever."
NEXT = """\
Go on with
  paradecode chat                                     talk to the model
  paradecode trace "Name three metals." --terminal    see what each forward adds
  paradecode methods                                  find a method"""


def run_demo(
    llm: LLM, canvas: LLM | None, console: Console, max_tokens: int
) -> dict[str, Comparison]:
    """Decode the prompts plainly and in parallel, show both, and return each race by its title.

    The two decoders are different tenants, so neither uses what the other has read or learned.

    Args:
        canvas: a diffusion model for the last race, or None to leave that race out.
        max_tokens: the most tokens of each answer of ``llm``.
    """
    models = [each for each in (llm, canvas) if each is not None]
    for each in models:
        console.print(f"[bold]{each.model}[/] on {each.backend.name}, plain and {each.decoder}")
    console.print(RULES, style="dim", highlight=False)
    with console.status("warming up ..."):
        for each in models:
            warm_up(each, [each.decoder])
    load = OtherLoad()
    compared = {
        title: race(llm, console, title, prompt, max_tokens) for title, prompt in PROMPTS.items()
    }
    if canvas is not None:
        compared[CANVAS] = race(canvas, console, CANVAS, CANVAS_PROMPT, CANVAS_TOKENS)
    _, others = load.look()
    if console.color_system and not console.no_color:
        console.print("One colour is one forward; underlined tokens were drafted.", style="dim")
    console.print(summary(compared))
    if any(each.suspicious for each in compared.values()):
        console.print(f"[yellow]{SUSPICIOUS}[/]", highlight=False)
    if others is not None and others > QUIET:
        console.print(f"[yellow]{BUSY}: these speeds are not the machine's own.[/]")
    if llm.model == DEFAULT:
        console.print(SMALL)
    console.print(NEXT, highlight=False)
    return compared


def race(llm: LLM, console: Console, title: str, prompt: str, max_tokens: int) -> Comparison:
    """Decode one prompt plainly and then in parallel, each in its own half of the screen."""
    console.rule(title)
    task, _, given = prompt.partition("\n\n")
    console.print(Text(task, "bold"), *([Text(given, "dim")] if given else []), sep="\n")
    decoders = {"plain": None, "parallel": llm.decoder}
    whole = {name: Panel("", title=name) for name in decoders}
    panes = dict(whole)
    width, most = max(40, (console.width - 2) // 2), max(1, console.height - 6)
    with Live(console=console, auto_refresh=False) as live:

        def draw(name: str, text: Text, tokens: int, forwards: int, seconds: float) -> None:
            plural = "s" * (forwards != 1)
            counts = f"{tokens} tokens, {forwards} forward{plural}, {seconds:.2f} s"
            end = Text("\n").join(text.wrap(console, width - 4)[-most:])
            whole[name] = Panel(text, title=name, subtitle=counts)
            panes[name] = Panel(end, title=name, subtitle=counts)
            live.update(Columns(panes.values(), padding=(0, 0), width=width), refresh=True)

        plain, parallel = (
            decoded(llm, prompt, max_tokens, decoder, name, partial(draw, name))
            for name, decoder in decoders.items()
        )
        # If the screen is too low for a text, it shows the end of the text so far.
        live.update(Columns(whole.values(), padding=(0, 0), width=width))
    if not console.is_terminal:  # It gets only the last picture, without a line end.
        console.line()
    return Comparison(llm.decoder, [plain], [parallel], is_bounded(llm.decoder))


def decoded(
    llm: LLM,
    prompt: str,
    max_tokens: int,
    decoder: Spec | None,
    salt: str,
    draw: Callable[[Text, int, int, float], None],
) -> Completion:
    """Decode a prompt, and draw the known part of the answer while it grows.

    Args:
        draw: shows a text, and numbers of tokens, forwards and seconds.

    Returns:
        The completion. Its ``decode_seconds`` do not include the time of ``draw``. For a canvas
            they begin with the request, because its first forward decides positions like any other.
    """
    on_canvas = _is_canvas(llm)
    text, tokens, seconds = Text(), 0, 0.0
    draw(_canvas_text(llm, (None,) * max_tokens if on_canvas else ()), 0, 0, 0.0)
    drawn = perf_counter()
    ids = encoder(llm)([{"role": "user", "content": prompt}])
    chunks = llm.stream(ids, max_tokens=max_tokens, decoder=decoder, salt=salt)
    while True:
        began = perf_counter()
        chunk = next(chunks)
        ended = perf_counter()
        if on_canvas or tokens:  # The first tokens of a text come with its prompt.
            seconds += ended - began
        if chunk.completion is not None:
            break
        tokens += len(chunk.token_ids)
        for commit in chunk.commits:
            text.append(visible(commit.text), colour_of(commit.forward))
        if on_canvas or ended - drawn > FRAME:
            decided = tokens + sum(token is not None for token in chunk.canvas)
            draw(text + _canvas_text(llm, chunk.canvas), decided, chunk.forward, seconds)
            drawn = perf_counter()
    stats = chunk.completion.stats
    first = 0 if on_canvas else stats.first_tokens
    stats = replace(stats, decode_seconds=seconds, first_tokens=first)
    completion = replace(chunk.completion, stats=stats)
    final = coloured(trace_of(completion, llm)["tokens"])
    draw(final, stats.generated, stats.forwards, seconds)
    return completion


def summary(compared: Mapping[str, Comparison]) -> Table:
    """Return a table of speed-ups as bars, their causes, and whether the tokens are the same."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("prompt", "", "speed-up", "tokens/s", "tokens a forward", "same tokens"):
        left = heading in ("prompt", "")
        whole = left or heading == "tokens/s"
        table.add_column(heading, justify="left" if left else "right", no_wrap=whole)
    most = max(1.0, *(each.over for each in compared.values()))
    for title, each in compared.items():
        (difference,) = each.differences
        table.add_row(
            title,
            ProgressBar(most, each.over, width=12),
            marked(f"{each.over:.2f}x", each.suspicious),
            f"{speed(each.plain):.0f} to {speed(each.made):.0f}",
            f"{each.tokens_a_forward:.2f}",
            "yes" if difference is None else f"differs at {difference}",
        )
    return table


def _is_canvas(llm: LLM) -> bool:
    return llm.decoder.method.family == "diffusion"


def _canvas_text(llm: LLM, canvas: Sequence[int | None]) -> Text:
    """Return the canvas after an output's text: its tokens, and a line for each masked position."""
    text = Text()
    for token in canvas:
        if token is None:
            text.append("_", "dim")
        else:
            text.append(visible(piece(llm.tokenizer, token)))
    return text
