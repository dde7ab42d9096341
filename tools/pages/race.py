"""Draws the README's picture: plain and parallel decoding of one prompt, forward by forward.

    python -m tools.pages.race docs/img/race.svg

The run is real: the default model answers the prompt twice after a warm-up, and the clock starts
with the first token. A browser plays the picture five times slower. A program that does not play it
shows how far both runs were when the parallel run ended; the text that plain decoding wrote later
is pale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from paradecode import LLM
from paradecode.timing.warm_up import warm_up

PROMPT = (
    "Fix the spelling mistakes in this text and return it: Yesterday we went to the harbor to see "
    "the ships. The captain showed us how the sails are raised, and my brother asked many "
    "qestions. After the tour we ate soup in a small restaurant beside the water. We hope to come "
    "back next week."
)
RUNS = {"plain: one token a forward": "greedy", "parallel: drafts, checked by a forward": "auto"}
SLOWER = 5
LETTERS = 46
"""Number of letters in a line; more make the picture wider."""
ROW, LETTER, PANE = 19, 7.8, 392
"""Height of a line, width of a letter, and distance between two panes, in points."""
STYLE = """text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#24292f}
.head{font-weight:bold}.said{fill:#57606a}.even{fill:#0550ae}.odd{fill:#bc4c00}.late{fill:#c6ccd2}
@keyframes come{from{opacity:0}to{opacity:1}}
@media (prefers-reduced-motion:no-preference){.p{animation:come 1ms both}}"""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        pieces: for each forward, seconds since the first token, and the text that it wrote.
        tokens: number of tokens of all forwards.
    """

    name: str
    pieces: Sequence[tuple[float, str]]
    tokens: int


def measured(llm: LLM, name: str, decoder: str) -> Run:
    """Decode the prompt once, and return the run."""
    done = llm.chat(PROMPT, decoder=decoder, max_tokens=96)
    ids, at, text = list[int](), -done.trace[0].seconds, ""
    pieces = list[tuple[float, str]]()
    for step in done.trace:
        at += step.seconds
        ids += step.tokens
        before, text = text, llm.tokenizer.decode(ids)
        pieces.append((at, text[len(before) :]))
    return Run(name, pieces, len(ids))


def picture(runs: Sequence[Run]) -> str:
    """Return the SVG with a pane for each run; the last run is the fast one."""
    first = runs[-1].pieces[-1][0]
    lines = max(line for run in runs for line, *_ in _placed(run)) + 1
    width, height = PANE * len(runs) + 8, 62 + ROW * (lines + 1)
    panes = [part for place, run in enumerate(runs) for part in _pane(run, place, first, lines)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n'
        f'<style>{STYLE}</style>\n<rect width="{width}" height="{height}" rx="8" '
        'fill="#f6f8fa"/>\n' + "\n".join(panes) + "\n</svg>\n"
    )


def _pane(run: Run, place: int, first: float, lines: int) -> Iterator[str]:
    left = 14 + place * PANE
    yield f'<text class="head" x="{left}" y="26">{escape(run.name)}</text>'
    for line, column, text, at, forward in _placed(run):
        kind = "late" if at > first else ("even", "odd")[forward % 2]
        yield (
            f'<text class="p {kind}" x="{left + column * LETTER:g}" y="{52 + line * ROW}" '
            f'style="animation-delay:{at * SLOWER:.2f}s">{escape(text)}</text>'
        )
    end = run.pieces[-1][0]
    yield (
        f'<text class="p said" x="{left}" y="{58 + lines * ROW}" style="animation-delay:'
        f'{end * SLOWER:.2f}s">{run.tokens} tokens, {len(run.pieces)} forwards, {end:.2f} s</text>'
    )


def _placed(run: Run) -> Iterator[tuple[int, int, str, float, int]]:
    """Yield line, column, text, second and forward of each piece; lines break between words."""
    whole = "".join(text for _, text in run.pieces)
    owners = [forward for forward, (_, text) in enumerate(run.pieces) for _ in text]
    starts, found = [0], list[tuple[int, int, int, str]]()
    for at, letter in enumerate(whole):
        end = whole.find(" ", at + 1)
        if letter == " " and (end if end > 0 else len(whole)) - starts[-1] > LETTERS:
            starts.append(at + 1)
        else:
            found.append((owners[at], len(starts) - 1, at - starts[-1], letter))
    for (forward, line), letters in groupby(found, key=lambda each: each[:2]):
        _, _, columns, texts = zip(*letters, strict=True)
        yield line, columns[0], "".join(texts), run.pieces[forward][0], forward


def main() -> None:
    with LLM() as llm:
        warm_up(llm, RUNS.values())
        runs = [measured(llm, name, decoder) for name, decoder in RUNS.items()]
    Path(sys.argv[1]).write_text(picture(runs), "utf-8")


if __name__ == "__main__":
    main()
