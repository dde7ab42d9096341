"""Compares the simulation of a plan with a run of it in two processes of one core each.

    python -m tools.figures.plan [--rounds 5] [--context 64] [--passes 64] [--out FILE.json]

The model's layers are divided: half of them in each process, or attention in one and feed-forward
in the other. Each round measures the parts anew, simulates, and runs. Times are those of a quiet
machine only.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from paradecode_lab.measure.plan.described import Device, PlacedLayers, Plan
from paradecode_lab.measure.plan.forecast import PlanForecast, Work
from paradecode_lab.measure.plan.pieces import opened
from paradecode_lab.measure.plan.processes import compared
from tools.script import Columns, options, save, show, stamped

WAYS = {
    "halves of the layers": lambda last: (
        PlacedLayers("a", f"0-{last // 2}"), PlacedLayers("b", f"{last // 2 + 1}-{last}")
    ),
    "attention apart": lambda last: (
        PlacedLayers("a", f"0-{last}", "attention"), PlacedLayers("b", f"0-{last}", "feed")
    ),
}  # fmt: skip
COLUMNS: Columns = {
    "placed": "{placed}", "flights": "{flights}", "simulated, ms": "{simulated_ms:.2f}",
    "run, ms": "{run_ms:.2f}", "run / simulated": "{ratio:.2f}", "equal": "{equal}",
}  # fmt: skip


def main() -> None:
    parser = options(__doc__, rounds=5, context=64, passes=64)
    parser.add_argument("--model")
    given = parser.parse_args()
    model = opened("model", given.model, None)
    machines = {"a": Device(threads=1), "b": Device(threads=1)}
    rows: list[dict[str, Any]] = []
    for placed, stages in WAYS.items():
        plan = Plan(machines, stages(model.pieces[-1].layer - 1))
        for flights in (1, 2, 3):
            work = Work(context=given.context, passes=given.passes, flights=flights)
            pairs = []
            for _ in range(given.rounds):
                ran, measured = compared(plan, given.model, model, work)
                pairs.append((PlanForecast(measured, model, work).outcome(1), ran))
            rows.append({
                "placed": placed, "flights": flights, "equal": all(ran.equal for _, ran in pairs),
                "simulated_ms": 1e3 * median(said.a_token for said, _ in pairs),
                "run_ms": 1e3 * median(ran.a_token for _, ran in pairs),
                "ratio": median(ran.a_token / said.a_token for said, ran in pairs),
            })  # fmt: skip
    show(rows, COLUMNS, width=100)
    save(stamped(model=model.name, context=given.context, passes=given.passes,
                 rounds=given.rounds, ways=rows), given.out)  # fmt: skip


if __name__ == "__main__":
    main()
