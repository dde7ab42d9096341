"""`paradecode rank`: which continuation of a text is the most likely for the model."""

from __future__ import annotations

from paradecode.cli.console import out, print_json
from paradecode.cli.options import Json, Loading, argument, grouped, option
from paradecode.cli.prompt import read_prompt
from paradecode.core.errors import InvalidInput


@grouped
def rank(
    loading: Loading,
    context: str = argument("", "The text that the continuations follow; - reads it from stdin."),
    candidate: list[str] = option([], "A continuation, used unchanged; repeat the option."),
    as_json: Json = False,
) -> None:
    """Order continuations of a text by their mean log-probability, all in one forward."""
    from rich.markup import escape
    from rich.table import Table

    context = context and read_prompt("CONTEXT", context)
    if not candidate or "" in candidate:
        fix = 'give texts of at least one token: --candidate " one" --candidate " two"'
        raise InvalidInput("--candidate", candidate, fix)
    with loading.open() as llm:
        ranked = llm.rank(context, candidate)
    if as_json:
        print_json(
            [
                {
                    "index": each.index, "candidate": candidate[each.index], "mean": each.mean,
                    "total": each.total, "tokens": len(each.logprobs),
                }
                for each in ranked
            ]
        )  # fmt: skip
        return
    table = Table("candidate", "nats a token", "in all", "tokens")
    for each in ranked:
        cells = escape(repr(candidate[each.index])), f"{each.mean:.3f}", f"{each.total:.2f}"
        table.add_row(*cells, str(len(each.logprobs)))
    out.print(table)
