"""`paradecode plan`: what a model would do on described or measured machines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradecode.cli.console import out, print_json
from paradecode.cli.options import Json, ModelName, argument, grouped, option

if TYPE_CHECKING:
    from paradecode_lab.measure.plan.forecast import PlanForecast, PlanOutcome
    from paradecode_lab.measure.plan.processes import SplitRun


@grouped
def plan(
    described: Path | None = argument(
        None, "JSON of machines, links and stages; by default this computer, measured."
    ),
    model: ModelName = None,
    bits: float | None = option(
        None, "Bits of a weight; by default those of the file, or 16 for a config.json."
    ),
    draft_bits: float | None = option(None, "The same for the draft model."),
    context: int = option(512, "Tokens before the first pass."),
    rows: int = option(1, "Rows of a sequence in a pass, without --acceptance."),
    batch: int = option(1, "Sequences that go through the machines together."),
    flights: int = option(1, "Batches that are on their way at a time; blocks, with --queue."),
    passes: int = option(64, "How often each batch goes through the model."),
    acceptance: float = option(
        0.0, "Try drafts, of which each token is accepted with this chance."
    ),
    queue: int = option(0, "Blocks in a queue, each passed so often (DualParal)."),
    run: bool = option(False, "Also run the plan in processes here, and compare."),
    as_json: Json = False,
) -> None:
    """Simulate a model on machines: time a token, throughput, busy shares, memory and drafts.

    A machine has bandwidth and operations, or threads, and is measured here then. A model that is
    only described is its config.json.
    """
    from paradecode.core.checks import build, json_object
    from paradecode_lab.measure.plan.described import Plan
    from paradecode_lab.measure.plan.forecast import PlanForecast, Work
    from paradecode_lab.measure.plan.pieces import opened
    from paradecode_lab.measure.plan.processes import HERE, compared, measured_here

    work = Work(context, rows, batch, flights, passes, acceptance, queue)
    read: Plan = build(Plan, json_object(described, "DESCRIBED") if described else HERE)
    target, draft = opened("model", model, bits), None
    if read.draft and read.draft.model:
        draft = opened("draft.model", read.draft.model, draft_bits)
    found: SplitRun | None = None
    if run:
        found, read = compared(read, model, target, work)
    else:
        read = measured_here(read, model, target, work, draft)
    forecast = PlanForecast(read, target, work, draft)
    outcomes = forecast.outcomes()
    if as_json:
        record: dict[str, Any] = {"model": target.name, **forecast.record(outcomes)}
        print_json(record | ({"run": asdict(found)} if found else {}))
        return
    _show(forecast, outcomes)
    if found:
        said = "the same tokens as" if found.equal else "OTHER TOKENS THAN"
        line = f"In processes here: {1e3 * found.a_token:.2f} ms a token, {found.a_second:.1f} "
        line += f"tokens a second, {said} one process"
        out.print(line, highlight=False, soft_wrap=True)


def _show(forecast: PlanForecast, outcomes: list[PlanOutcome]) -> None:
    """Print the machines, the outcomes, and whether drafts pay."""
    from paradecode.cli.tables import print_table
    from paradecode_lab.measure.plan.pieces import ATTENTION, EMBED, FEED, HEAD

    names = {EMBED: "embeddings", ATTENTION: "attention", FEED: "feed-forward", HEAD: "head"}
    best = max(outcomes, key=lambda each: each.a_second)
    lines = []
    for machine in forecast.plan.machines:
        counts = dict.fromkeys(names, 0)
        for owner, own in forecast.visits:
            for piece in own if owner == machine else ():
                counts[piece.kind] += 1
        holds = ", ".join(f"{count} {names[kind]}" for kind, count in counts.items() if count)
        busy = f"{best.busy.get(machine, 0.0):.0%}"
        lines.append((machine, holds, busy, f"{forecast.memory[machine] / 1e9:.3g}"))
    print_table(("machine", "holds", "busy", "memory, GB"), lines)
    print_table(
        ("rows", "tokens a pass", "first pass, ms", "ms a token", "tokens a second", "over plain",
         "bound by"),
        [(str(each.rows), f"{each.tokens:.2f}", f"{1e3 * each.first:.3g}",
          f"{1e3 * each.a_token:.3g}", f"{each.a_second:.4g}",
          f"{each.a_second / outcomes[0].a_second:.2f}", each.bound) for each in outcomes],
    )  # fmt: skip
    if len(outcomes) > 1:
        gain = best.a_second / outcomes[0].a_second
        line = f"Drafts pay: {best.rows} rows give {gain:.2f} times the tokens of one"
        out.print(line if best.rows > 1 else "Drafts do not pay here", highlight=False)
