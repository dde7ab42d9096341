"""Results as Markdown, for documentation and for reading a run in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from paradecode.measure.results import Results, groups_of
from paradecode.measure.summary import QUIET, Agreement, EngineSummary
from paradecode.measure.tables import number, spread, table


def report(results: Results, summaries: Sequence[EngineSummary], baseline: str | None) -> str:
    """Everything: conditions, main table, groups, what could not be measured, definitions."""
    parts = [
        _conditions(results),
        table(_main_head(baseline), [_main_row(s) for s in _by_speed(summaries)]),
        "Decode tokens per second by kind of task:",
        _groups(results, summaries),
    ]
    if any(s.lossless for s in summaries):
        parts += [
            "Speculation against the same engine's plain greedy output:",
            table(
                ("engine", "identical outputs", "first difference (median token)"),
                [(s.engine.name, *_lossless(s.lossless)) for s in summaries if s.lossless],
            ),
        ]
    missing = [e for e in results.engines if e.status != "ok"]
    if missing:
        parts += [
            "Not, or not completely, measured:",
            table(
                ("engine", "status", "reason"),
                [(e.name, e.status, e.reason.replace("|", "/")) for e in missing],
            ),
        ]
    return "\n\n".join([*parts, _notes(results, summaries)]) + "\n"


def _conditions(results: Results) -> str:
    machine, settings = results.machine, results.settings
    versions = {
        engine.peer: ", ".join(f"{name} {found}" for name, found in engine.versions.items())
        for engine in results.engines
        if engine.versions
    }
    lines = [
        f"- Machine: {machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB; "
        f"{', '.join(machine.isa)}; {machine.system}, Python {machine.python}",
        f"- Model: {results.model}, greedy, {len(results.items)} inputs in "
        f"{len(groups_of(results))} groups, "
        f"{sum(i.prompt_tokens for i in results.items)} prompt tokens, at most "
        f"{max(i.max_tokens for i in results.items)} new tokens each",
        f"- {settings.get('rounds', '?')} interleaved rounds, {settings.get('threads', '?')} "
        f"threads each; {results.created[:10]}, commit `{results.commit[:12] or 'unknown'}`",
        "- Versions: " + "; ".join(f"{peer}: {found}" for peer, found in versions.items()),
    ]
    return "\n".join(lines)


def _main_head(baseline: str | None) -> tuple[str, ...]:
    return (
        "engine", "decode tok/s", f"x {baseline}" if baseline else "x baseline", "overall tok/s",
        "prompt tok/s", "first token ms", "peak MB", "load s", "NLL/token", "oracle's choice",
        "same as plain",
    )  # fmt: skip


def _main_row(summary: EngineSummary) -> tuple[str, ...]:
    engine, total, lossless = summary.engine, summary.total, summary.lossless
    return (
        engine.name,
        spread(total.decode),
        spread(total.speedup),
        number(total.overall.value) if total.overall else "-",
        number(total.prefill.value) if total.prefill else "-",
        number(1000 * total.first_token.value) if total.first_token else "-",
        f"{engine.peak_bytes / 1e6:.0f}" if engine.peak_bytes else "-",
        f"{engine.load_seconds:.1f}" if engine.load_seconds is not None else "-",
        f"{summary.nll:.4f}" if summary.nll is not None else "-",
        f"{100 * summary.agreed:.1f} %" if summary.agreed is not None else "-",
        f"{lossless.identical}/{lossless.items}" if lossless else "",
    )


def _groups(results: Results, summaries: Sequence[EngineSummary]) -> str:
    groups = groups_of(results)
    rows = []
    for summary in _by_speed(summaries):
        cells = [summary.groups[group].decode for group in groups]
        rows.append((summary.engine.name, *(number(c.value) if c else "-" for c in cells)))
    return table(("engine", *groups), rows)


def _lossless(agreement: Agreement | None) -> tuple[str, str]:
    if agreement is None:
        return "", ""
    first = agreement.first_differences
    return f"{agreement.identical} of {agreement.items}", f"{median(first):.0f}" if first else "-"


def _notes(results: Results, summaries: Sequence[EngineSummary]) -> str:
    lines = [
        "Decode tok/s: generated tokens after the first ones, up to and including the first stop "
        "token, over the time from the first token to the last; overall: all generated tokens "
        "over the whole time. All are ratios of totals over the inputs (medians over rounds); in "
        "brackets the 95 % bootstrap interval over prompts. Ratios are paired by prompt.",
        "Peak MB: resident memory of the engine's process, mapped weights included.",
    ]
    if any(s.nll is not None for s in summaries):
        lines.append(
            "NLL/token and oracle's choice: mean negative log-likelihood of the engine's own "
            "output, and the share of its tokens that are the argmax, under a float32 forward of "
            "the same dequantised weights."
        )
    disturbed = [s for s in summaries if s.disturbed > 0]
    if disturbed:
        worst = max(disturbed, key=lambda s: s.disturbed)
        lines.append(
            f"Other processes used more than {QUIET} cores during every round of up to "
            f"{100 * worst.disturbed:.0f} % of an engine's inputs ({worst.engine.name})."
        )
    unsteady = [s for s in summaries if s.repeatable < s.total.items]
    if unsteady:
        named = ", ".join(
            f"{s.engine.name} ({s.total.items - s.repeatable} of {s.total.items})" for s in unsteady
        )
        lines.append(f"Outputs that changed from round to round: {named}.")
    if results.commit.endswith("+"):
        lines.append("The working tree had uncommitted changes.")
    return "\n\n".join(lines)


def _by_speed(summaries: Sequence[EngineSummary]) -> list[EngineSummary]:
    return sorted(summaries, key=lambda s: -(s.total.decode.value if s.total.decode else 0))
