"""Measures what trained parts gain on the model that ships, beside the same methods without them.

    mkdir -p out/parts && cd out/parts
    paradecode train unmask-filter filter.safetensors --json > filter.json
    paradecode train joint-sampler layer.safetensors --samples texts.samples --json > layer.json
    paradecode train refine refined --samples texts.samples --json > refined.json
    paradecode train r2 short --json > short.json
    cd ../.. && python -m tools.figures.trained_parts out/parts [--instances 12] [--out FILE.json]
    python -m tools.figures.trained_parts FILE.json --into docs/training.md

Every method and model decodes the same held-out instances of all tasks, as in ``paradecode bench
--suite parallel``. Times are not kept, because the models are measured one after the other. Parts
that are not in the folder are left out. A layer of the joint sampler that changes nothing is
refused, and its lines are removed from results. Such a layer means that training found none that is
better than no layer.
"""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress

from paradecode import LLM
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.policies.learned import JointLayer
from paradecode.testing.trained_parts import joint_layer
from paradecode_lab.measure.machine import weights_of
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.suites.parallel.suite import DEFAULT_MODEL, ParallelPlan, measure
from paradecode_lab.measure.suites.parallel.summary import (
    MethodRecords,
    compared,
    figures,
    measured,
    tasks_of,
)
from paradecode_lab.measure.tables import Column, markdown, number, points
from tools.pages.marked import put
from tools.script import err, options, save, stamped

EAGER = "threshold(threshold=0.5)"
COARSE = re.compile(r"threshold=0\.5|steps=8|tokens=2")
"""Settings that a page leaves out, because they decide more tokens at once and lose more."""
QUICK = ("static", "threshold", EAGER, "static(steps=8)")
REFINED = ("refine(base=threshold)", f"refine(base={EAGER})", "refine(base=static,steps=8)")
JOINT, LAYER = "joint-sampler(layer='{}',tokens={})", "layer.safetensors"
"""The joint sampler and the file of its layer.

The layer in `zero.safetensors` changes nothing, so the same number of tokens is decided
independently.
"""
METHODS: Mapping[str, tuple[str, ...]] = {
    DEFAULT_MODEL: (
        *QUICK, "r2", *REFINED, "learn2pd(filter='filter.safetensors')",
        *(JOINT.format(f"{layer}.safetensors", n) for n in (2, 4) for layer in ("zero", "layer")),
    ),
    "refined": (*QUICK, *REFINED),
    "short": ("static", "threshold", "r2"),
}  # fmt: skip
"""Model -> the methods that are measured with it."""
REPORTS = ("filter", "layer", "refined", "short")


def require_trained(layer: Path) -> None:
    """Refuse a layer that changes nothing, which means that training found none that is better.

    Raises:
        InvalidInput: the layer changes nothing.
    """
    if not JointLayer.open(str(layer)).tensors["out"].any():
        fix = "it changes nothing, so it is not trained: train it on more texts, or remove it"
        raise InvalidInput("layer", str(layer), fix)


def without_untrained(made: dict[str, Any]) -> dict[str, Any]:
    """Return a result without the lines of a layer that its training report calls useless."""
    report = made["training"].get("layer")
    if report is None or any(report[after]["layer"] != report[after]["stale"]
                             for after in ("one", "all")):  # fmt: skip
        return made
    rows = [row for row in made["methods"] if LAYER not in row["method"]]
    return {**made, "untrained": [LAYER], "methods": rows}


def ways(model: str) -> tuple[str, ...]:
    """Return the methods of a model whose files are all in the folder."""
    return tuple(
        method
        for method in METHODS[model]
        if all(Path(file).exists() for file in re.findall(r"'(\S+\.safetensors)'", method))
    )


def run(model: str, instances: int, batch: int, progress: Progress) -> Results:
    """Run all methods of a model; answers are kept, so that an interrupted run can be resumed."""
    task = progress.add_task(model, total=None)
    settings = {"dtype": "auto", "device": "cpu"}
    journal = Path(f"{Path(model).name}.jsonl")
    folder = model if model == DEFAULT_MODEL else f"{model}/model"
    with LLM(folder) as llm:
        if not Path("zero.safetensors").exists():
            sizes = llm.config.vocab_size, llm.config.hidden_size
            joint_layer(0.0, *sizes).save(Path("zero.safetensors"))
        plan = ParallelPlan(ways(model), instances=instances, batch=batch)
        return measure(
            llm, weights_of(folder), plan, journal, settings,
            lambda new, total: progress.update(task, advance=new, total=total),
        )  # fmt: skip


def row(
    model: str, method: str, done: MethodRecords, static: MethodRecords, results: Results
) -> Any:
    """Return a method's figures, and what it gains over `static` with the model that ships."""
    own = asdict(figures(done, set(done.answers)))
    versus = compared(done, static)
    assert versus is not None
    right = {
        task: sum(done.answers[item].right is True for item in ids)
        for task, ids in tasks_of(results.items).items()
    }
    return {
        "model": model,
        "method": method,
        **{name: own[name] for name in ("right", "items", "exact", "per_forward", "per_deciding")},
        "gain": asdict(versus.gain),
        "identical": versus.identical,
        "tasks": right,
    }


def document(given: Namespace) -> dict[str, Any]:
    """Measure all models, and return the result."""
    os.chdir(given.parts)  # Specs name the files without a folder, and the result has the specs.
    if Path(LAYER).exists():
        require_trained(Path(LAYER))
    with Progress(console=err) as progress:
        there = [m for m in METHODS if m == DEFAULT_MODEL or Path(m).is_dir()]
        found = {m: run(m, given.instances, given.batch, progress) for m in there}
    static = measured(found[DEFAULT_MODEL])["static"]
    return stamped(
        weights={m: r.settings["weights"] for m, r in found.items()},
        failed={m: r.failed for m, r in found.items()},
        instances=given.instances,
        batch=given.batch,
        training={
            name: json.loads(path.read_text("utf-8"))
            for name in REPORTS
            if (path := Path(f"{name}.json")).exists()
        },
        methods=[
            row(model, method, done, static, results)
            for model, results in found.items()
            for method, done in measured(results).items()
        ],
    )


COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("method", lambda each: f"`{each['method']}`"),
    Column("model", lambda each: each["model"].removeprefix("paradecode/")),
    Column("right", lambda each: f"{each['right']}/{each['items']}"),
    Column("points above `static`", lambda each: points(Interval(**each["gain"]))),
    Column("tokens a deciding forward", lambda each: number(each["per_deciding"]["value"])),
)


def table(made: Mapping[str, Any]) -> str:
    """Return a Markdown table with a line for each method.

    Lines of the model that ships come first.
    """
    return markdown(COLUMNS, [row for row in made["methods"] if not COARSE.search(row["method"])])


def main() -> None:
    parser = options(__doc__, instances=12, batch=16)
    parser.add_argument("parts", type=Path, help="folder of the parts, or the JSON of a run")
    parser.add_argument("--into", type=Path, help="a page with marks named `trained`")
    given = parser.parse_args()
    out, into = (path and path.absolute() for path in (given.out, given.into))
    known = given.parts.suffix == ".json"
    made = without_untrained(
        json.loads(given.parts.read_text("utf-8")) if known else document(given)
    )
    print(table(made))
    save(made, out)
    if into:
        put(into, "trained", f"\n{table(made)}\n")


if __name__ == "__main__":
    main()
