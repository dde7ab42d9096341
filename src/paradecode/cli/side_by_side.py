"""The demonstration: answers decoded plainly and in parallel, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from paradecode.completion import Completion
from paradecode.llm import LLM
from paradecode.timing.doubts import BUSY, SUSPICIOUS, is_suspicious, marked, verifies
from paradecode.timing.other_load import QUIET, OtherLoad
from paradecode.timing.warm_up import warm_up
from paradecode.trace import coloured, trace_of

CODE = """\
```python
def greet_all(names):
    for name in names:
        print("Hello, " + name + "!")
        print("Welcome to the course.")
        print("Your room is number 12.")
    print("There are " + str(len(names)) + " people.")
```"""

ARTICLE = """\
The Harbour Museum reopens on 14 March after a renovation that took two years and cost 6.2 million
euros. Director Lena Aalto said that the new east wing shows 340 ship models, among them the
steamer Nordstjernan, which was restored by volunteers from the Turku Maritime Society. Entry is
free on the first weekend; afterwards a ticket costs 12 euros."""

PROMPTS = {
    "open question": "Why is the sky blue? Answer in a short paragraph.",
    "rewrite this code": (
        f'Rewrite this code so that the greeting is "Good morning" in place of "Hello":\n\n{CODE}'
    ),
    "extract from this text": (
        f"Quote the sentences of this text that contain a number:\n\n{ARTICLE}"
    ),
}


@dataclass(frozen=True)
class Comparison:
    """The same prompt, decoded plainly and with a method."""

    title: str
    plain: Completion
    parallel: Completion

    @property
    def over(self) -> float:
        """Speed relative to plain decoding; 0 where nothing was timed."""
        plain = self.plain.stats.tokens_per_second
        return self.parallel.stats.tokens_per_second / plain if plain else 0.0

    @property
    def suspicious(self) -> bool:
        """Whether the number of forwards behind the prompt does not explain the speed-up."""
        stats = self.parallel.stats
        later = stats.generated - stats.first_tokens
        return is_suspicious(self.over, later, stats.forwards - 1)

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs, or None."""
        a, b = self.plain.token_ids, self.parallel.token_ids
        if a == b:
            return None
        pairs = zip(a, b, strict=False)
        return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def run_demo(llm: LLM, console: Console, max_tokens: int = 128) -> list[Comparison]:
    """Decode the three prompts both ways, show the answers, and return them.

    Both ways are tenants of their own: neither finds what the other one has read or learned.
    """
    console.print(f"[bold]{llm.model}[/] on {llm.backend.name}, plain and {llm.decoder}\n")
    compared = []
    with console.status("warming up ..."):
        warm_up(llm, [llm.decoder])
    load = OtherLoad()
    for title, prompt in PROMPTS.items():
        messages = [{"role": "user", "content": prompt}]
        with console.status(f"{title} ..."):
            plain = llm.chat(messages, max_tokens=max_tokens, decoder=None, salt="plain")
            parallel = llm.chat(messages, max_tokens=max_tokens, salt="parallel")
        compared.append(Comparison(title, plain, parallel))
        show(llm, console, compared[-1])
    checked = verifies(str(llm.decoder), llm.decoder.guarantee)
    _, others = load.look()
    console.print(summary(compared, checked))
    if checked and any(comparison.suspicious for comparison in compared):
        console.print(f"[yellow]{SUSPICIOUS}[/]", highlight=False)
    if others is not None and others > QUIET:
        console.print(f"[yellow]{BUSY}: these speeds are not the machine's own.[/]")
    return compared


def show(llm: LLM, console: Console, comparison: Comparison) -> None:
    """Both answers side by side, coloured by forward."""
    width = max(40, (console.width - 2) // 2)
    panels = []
    for name, completion in (("plain", comparison.plain), ("parallel", comparison.parallel)):
        stats = completion.stats
        title = f"{name}: {stats.generated} tokens, {stats.forwards} forwards"
        body = coloured(trace_of(completion, llm)["tokens"])
        panels.append(Panel(body, title=title, width=width))
    console.rule(comparison.title)
    console.print(Columns(panels, padding=(0, 0)))


def summary(compared: list[Comparison], checked: bool) -> Table:
    """Lines that give the speeds and say whether the outputs have the same tokens.

    Args:
        checked: whether the method verifies all tokens, so that forwards bound its speed-up.
    """
    table = Table(title="One colour is one forward; underlined tokens were drafted")
    for heading in ("prompt", "plain", "parallel", "speed-up", "tokens a forward", "same tokens"):
        table.add_column(heading, justify="left" if heading == "prompt" else "right")
    for c in compared:
        slow, fast = c.plain.stats, c.parallel.stats
        table.add_row(
            c.title,
            f"{slow.tokens_per_second:.0f} tokens/s",
            f"{fast.tokens_per_second:.0f} tokens/s",
            marked(f"{c.over:.2f}x", checked and c.suspicious),
            f"{fast.tokens_per_forward:.2f}",
            "yes" if c.first_difference is None else f"differs at {c.first_difference}",
        )
    return table
