"""Results as Markdown. Every line with a speed has the exact match beside it."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.measure.suites.parallel.methods import REFERENCE
from paradecode.measure.suites.parallel.results import Results
from paradecode.measure.suites.parallel.summary import Figures, Summary, tasks_of
from paradecode.measure.suites.parallel.verdicts import Verdict
from paradecode.measure.tables import number, percent, points, spread, table, times
from paradecode.measure.tasks.tasks import BY_NAME

HEAD = (
    "method", "exact match", f"minus `{REFERENCE}`'s", "tokens/forward", "fewer forwards",
    "tokens/deciding forward", "rows/token", "fewer rows", "tokens/s", f"x `{REFERENCE}`",
    "identical",
)  # fmt: skip
BRIEF = ("method", "exact %", "points", "tok/fwd", "fewer rows", "x as fast")
NOTES = (
    f"All ratios are a token, paired with `{REFERENCE}` (one token a forward, no cache) on the "
    "same batches, 95 % bootstrap intervals in brackets. Exact match: Wilson's interval; its "
    "difference: Bonett and Price's paired one.",
    "Tokens are those of the output with its end of text. A deciding forward decided one of them; "
    "the others decided only what lies behind, which is easy, so their share flatters every policy "
    "on a long canvas. Rows: positions computed, prompt included.",
    "Identical: outputs equal, token by token, to `static` with the same blocks and no cache.",
)


def report(results: Results, summaries: Sequence[Summary], found: Sequence[Verdict]) -> str:
    """Conditions, verdicts, all methods, exact match and parallelism by task, definitions."""
    parts = [
        "# Quality against speed of canvas decoding",
        _conditions(results),
        _verdicts(found),
        table(HEAD, [_code(row(summary)) for summary in summaries]),
        "## By task",
        "Exact match in %, and in brackets tokens a deciding forward. *Several* right answers mean "
        "that the tokens depend on one another when the prompt is known.",
        _tasks(results, summaries),
    ]
    if results.failed:
        lines = [(f"`{name}`", why.replace("|", "/")) for name, why in results.failed.items()]
        parts += ["Not, or not completely, measured:", table(("method", "reason"), lines)]
    if results.commit.endswith("+"):
        parts.append("The working tree had uncommitted changes.")
    return "\n\n".join([*parts, *NOTES]) + "\n"


def row(summary: Summary) -> tuple[str, ...]:
    """A method's cells under HEAD."""
    total, versus = summary.total, summary.versus
    plain = summary.plain
    return (
        summary.method,
        percent(total.exact),
        points(versus.gain) if versus else "",
        spread(total.per_forward),
        times(versus.forwards) if versus else "",
        number(total.per_deciding.value) if total.per_deciding else "-",
        number(total.rows),
        times(versus.rows) if versus else "",
        spread(total.per_second),
        times(versus.seconds) if versus else "",
        f"{plain.identical}/{plain.items}" if plain else "",
    )


def brief(summary: Summary) -> tuple[str, ...]:
    """A method's cells under BRIEF, without intervals: for a terminal."""
    total, versus = summary.total, summary.versus
    return (
        summary.method,
        f"{100 * total.exact.value:.1f}",
        f"{100 * versus.gain.value:+.1f}" if versus else "",
        number(total.per_forward.value) if total.per_forward else "-",
        number(versus.rows.value) if versus and versus.rows else "",
        number(versus.seconds.value) if versus and versus.seconds else "",
    )


def _conditions(results: Results) -> str:
    machine, settings = results.machine, results.settings
    tasks = tasks_of(results.items)
    versions = ", ".join(f"{name} {found}" for name, found in results.versions.items())
    return "\n".join(
        [
            f"- Model: {results.model} (`{results.weights[:12]}`), {settings['backend']}, greedy",
            f"- {len(results.items)} held-out instances of {len(tasks)} tasks, seed "
            f"{settings['seed']}, canvases of {' or '.join(map(str, _canvases(results)))} "
            f"positions, {settings['batch']} in a batch",
            f"- Machine: {machine.cpu}, {machine.cores} cores, "
            f"{machine.memory_bytes / 2**30:.0f} GiB; {settings['threads'] or 'all'} threads",
            f"- {versions}, Python {machine.python}; {results.created[:10]}, commit "
            f"`{results.commit[:12] or 'unknown'}`",
        ]
    )


def _canvases(results: Results) -> list[int]:
    return sorted({item.canvas for item in results.items})


def _verdicts(found: Sequence[Verdict]) -> str:
    lines = []
    for verdict in found:
        lines.append(f"- **{verdict.word}**: {verdict.target}")
        lines += [f"    - {line}" for line in verdict.evidence]
    return "\n".join(lines)


def _tasks(results: Results, summaries: Sequence[Summary]) -> str:
    tasks = sorted(tasks_of(results.items), key=lambda task: BY_NAME[task].free)
    head = ["method", *tasks]
    kinds = ["*right answers*", *("several" if BY_NAME[task].free else "one" for task in tasks)]
    rows = [
        (f"`{summary.method}`", *(_cell(summary.tasks[task]) for task in tasks))
        for summary in summaries
    ]
    return table(head, [kinds, *rows])


def _cell(found: Figures) -> str:
    parallel = number(found.per_deciding.value) if found.per_deciding else "-"
    return f"{100 * found.exact.value:.0f} ({parallel})"


def _code(cells: tuple[str, ...]) -> tuple[str, ...]:
    return (f"`{cells[0]}`", *cells[1:])
