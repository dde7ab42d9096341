"""Decodes the graded tasks with drafts on the trained hybrid and on its transformer.

    python -m tools.figures.stree [--instances 25] [--nodes 6] [--out FILE.json]
    python -m tools.figures.stree FILE.json --into docs/methods.md

Trees on layers with a state are what STree is about (arXiv 2505.14969). For each model and drafter
a chain and a tree of as many nodes answer the same held-out instances, in turns with plain
decoding. As a draft model each model has the other one: it shows what trees of good guesses do, and
not a speed, because it costs as much as its target.

``nodes`` are those of a draft. ``drafts right`` is the share of drafts of which a token is
accepted, and ``nodes right`` the share of draft tokens. ``over plain`` is a quotient of times of
answers that take turns, on one thread, and all other columns are counts.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.progress import Progress

from paradecode import LLM
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.paired import PairedRun, decode_by_turns, equal, speed_up
from paradecode_lab.measure.suites.parallel.suite import draw_instances, make_items
from paradecode_lab.measure.tables import Column
from paradecode_lab.measure.tasks.task import TaskInstance
from paradecode_lab.measure.tasks.tasks import BY_NAME, SETS
from tools.script import Row, err, options, stamped, tabulate

HYBRID, TWIN, PLAIN = "paradecode/graded-hybrid", "paradecode/graded-autoregressive", "greedy"
SHAPES = {
    "token-recycling": {"chain": "k=1", "tree": "k=8"},
    "draft-model": {"chain": "width=1", "tree": "width=3"},
}
"""Drafter -> the setting that makes it draft a chain or a tree."""
COLUMNS: tuple[Column[Row], ...] = (
    Column("model", lambda row: row["model"].partition("/")[2]),
    Column("drafts of", lambda row: row["drafter"]),
    Column("shape", lambda row: row["shape"]),
    Column("right", lambda row: f"{row['right']} of {row['answers']}"),
    Column("equal", lambda row: str(row["equal"])),
    Column("tokens a forward", lambda row: f"{row['tokens_a_forward']:.2f}"),
    Column("nodes", lambda row: f"{row['nodes_a_draft']:.1f}" if row["drafter"] else ""),
    Column("drafts right", lambda row: f"{row['drafts_right']:.0%}" if row["drafter"] else ""),
    Column("nodes right", lambda row: f"{row['nodes_right']:.0%}" if row["drafter"] else ""),
    Column("ms a token", lambda row: f"{row['ms_a_token']:.2f}"),
    Column("over plain", lambda row: f"{row['over_plain']['value']:.2f}x"),
)


def ways(nodes: int) -> dict[str, tuple[str, str]]:
    """Return spec -> (drafter, shape) of plain decoding, and of each chain and tree."""
    fixed = f"budget=fixed,num_speculative_tokens={nodes},"
    return {PLAIN: ("", "")} | {
        f"{drafter}({fixed}{setting})": (drafter, shape)
        for drafter, shapes in SHAPES.items()
        for shape, setting in shapes.items()
    }


def row(
    runs: Sequence[PairedRun], spec: str, instances: Mapping[str, TaskInstance], llm: LLM
) -> dict[str, Any]:
    """Return the figures of one way to decode."""
    own = [run for run in runs if run.method == spec]
    stats, later = [run.stats for run in own], sum(run.later for run in own)
    right = Counter(
        run.group for run in own
        if BY_NAME[run.group].check(instances[run.prompt], llm.tokenizer.decode(run.output))
    )  # fmt: skip
    drafted, drafts = sum(each.drafted for each in stats), sum(each.drafts for each in stats)
    over = speed_up(runs, spec, PLAIN)
    return {
        "answers": len(own), "right": right.total(), "tasks": dict(sorted(right.items())),
        "equal": equal(runs, spec, PLAIN),
        "tokens_a_forward":
            sum(each.generated for each in stats) / sum(each.forwards for each in stats),
        "nodes_a_draft": drafted / max(1, drafts),
        "drafts_right": sum(sum(s.accepted_per_position[:1]) for s in stats) / max(1, drafts),
        "nodes_right": sum(each.accepted for each in stats) / max(1, drafted),
        "ms_a_token": 1e3 * sum(each.decode_seconds for each in stats) / later,
        "over_plain": asdict(over) if over else None,
    }  # fmt: skip


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each model and way, and the speeds of trees over their chains."""
    specs, rows, trees = ways(given.nodes), list[dict[str, Any]](), list[dict[str, Any]]()
    instances = draw_instances(SETS["graded"], given.instances, 0)
    with Progress(console=err) as progress:
        task = progress.add_task("answers", total=2 * len(instances) * len(specs))
        for model, other in ((HYBRID, TWIN), (TWIN, HYBRID)):
            with LLM(model, draft_model=other, threads=1) as llm:
                warm_up(llm, specs)
                items = make_items(llm, instances)
                runs = decode_by_turns(
                    llm, items, list(specs), progress=lambda: progress.advance(task)
                )
                for spec, (drafter, shape) in specs.items():
                    about = {"model": model, "drafter": drafter, "shape": shape, "way": spec}
                    rows.append(about | row(runs, spec, instances, llm))
            for drafter in SHAPES:
                chain, tree = (spec for spec, (name, _) in specs.items() if name == drafter)
                if over := speed_up(runs, tree, chain):
                    trees.append({"model": model, "drafter": drafter, "over_chain": asdict(over)})
    return stamped(instances=given.instances, nodes=given.nodes, trees=trees, ways=rows)


if __name__ == "__main__":
    tabulate(options(__doc__, instances=25, nodes=6), COLUMNS, measured)
