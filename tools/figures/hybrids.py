r"""Hybrids of both families on the models that ship: what they save, and what they cost.

    python -m tools.figures.hybrids [--instances 4] [--rounds 3] [--batch 1] [--max-tokens 96]
        [--out FILE.json]
    python -m tools.figures.hybrids --trained out/hybrids --instances 12 --max-tokens 64 ...
        [--tasks graded] [--groups wedlm,jacobi]

``deer``: the autoregressive model, and the diffusion model drafts for it. ``assd``: the diffusion
model by its own joint density. With ``--trained`` those that need training, of the folder's runs,
each beside the model that it began with; ``--groups`` names those that the folder has. On the
simple tasks:

    paradecode train dparallel out/hybrids/dparallel
    paradecode train dparallel out/hybrids/unforced --weight 0
    paradecode train jacobi out/hybrids/jacobi
    paradecode train wedlm out/hybrids/wedlm --steps 800 --rate 1e-3 --threads 1

and on the graded ones:

    paradecode train dparallel out/graded/dparallel -m paradecode/graded-diffusion --tasks graded \
        --limit 2000
    paradecode train dparallel out/graded/unforced -m paradecode/graded-diffusion --tasks graded \
        --limit 2000 --weight 0
    paradecode train r2 out/graded/r2 -m paradecode/graded-diffusion --tasks graded
    paradecode train jacobi out/graded/jacobi -m paradecode/graded-autoregressive --tasks graded
    paradecode train wedlm out/graded/wedlm -m paradecode/graded-autoregressive --tasks graded \
        --steps 800 --rate 1e-3 --threads 1
    paradecode train assd out/graded/assd --threads 1
    paradecode train deer out/graded/deer --threads 1
    mkdir out/graded/joint && paradecode train joint-sampler out/graded/joint/layer.safetensors \
        -m paradecode/graded-diffusion --tasks graded --limit 600 --threads 1

The layer of ``joint-sampler`` stands beside one that changes nothing, and beside ``static`` with as
many tokens a forward.

Held-out instances of every task, decoded in batches; ways take turns within a batch. ``equal``
counts outputs that are token by token those of the first way of the same model. Rows are the
target's, without those of the draft model. Tokens a second are those of whole requests, prompts
included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import track

from paradecode import LLM
from paradecode.testing.trained_parts import joint_layer
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.tasks.task import Task
from paradecode_lab.measure.tasks.tasks import TASKS, tasks_named
from tools.figures.trained_parts import require_trained
from tools.script import err, options, save, show, stamped

TARGET, DRAFT = "paradecode/tiny-autoregressive", "paradecode/tiny-diffusion"
MODELS = {
    "simple": (TARGET, DRAFT),
    "graded": ("paradecode/graded-autoregressive", "paradecode/graded-diffusion"),
}
"""The autoregressive model and the diffusion model that know a set of tasks."""


class Ways(NamedTuple):
    """Ways to decode with a model."""

    group: str
    model: str
    ways: Sequence[str]
    draft: str | None = None
    tasks: Sequence[Task] = TASKS


SHIPPED = (
    Ways("deer", TARGET, (
        "greedy", "prompt-lookup", "deer", "deer(masks=0)", "deer(num_speculative_tokens=16)",
        "deer(num_speculative_tokens=16,width=1,budget=fixed)",
        "deer(num_speculative_tokens=16,width=1,budget=fixed,refresh=1)",
        "deer(num_speculative_tokens=32,width=1,budget=fixed)",
    ), DRAFT),
    Ways("assd", DRAFT, (
        "assd(tokens=1)", "assd", "assd(tokens=16)", "static(block_length=8)", "threshold",
    )),
)  # fmt: skip
UNMASKING = (
    "static(block_length=32)", "threshold", "threshold(threshold=0.7)", "threshold(threshold=0.5)",
    "threshold(score=entropy,threshold=0.1)", "threshold(score=entropy,threshold=0.5)",
    "threshold(score=entropy,threshold=1)",
)  # fmt: skip
ITERATING = (
    "greedy", "prompt-lookup",
    *(f"jacobi(num_speculative_tokens={count},explore=always,budget=fixed,recycle={recycle})"
      for count in (16, 32) for recycle in (0, 4)),
)  # fmt: skip
REORDERING = (
    "greedy", "prompt-lookup", "wedlm(entropy=0)", "wedlm(entropy=0.01)", "wedlm(entropy=0.1)",
    "wedlm", "wedlm(entropy=0.6)", "wedlm(window=4)", "wedlm(window=8)", "wedlm(window=32)",
)  # fmt: skip
ANY_SUBSET = (
    "assd(tokens=1)", "assd(tokens=3)", "assd", "assd(tokens=8)", "static(block_length=8)",
    "threshold", "threshold(block_length=8)",
)  # fmt: skip
DRAFTING = (
    "greedy", "prompt-lookup", "deer", "deer(width=1)",
    *(f"deer(num_speculative_tokens={count},width=1,budget=fixed)" for count in (2, 4, 8, 16)),
)  # fmt: skip


JOINT, ZERO = ("joint/layer.safetensors", "joint/zero.safetensors")


def sampling(folder: Path) -> Iterator[str]:
    """Several tokens a forward with the trained layer, with one that changes nothing, and plain."""
    for tokens in (2, 4):
        yield f"static(block_length=32,steps={96 // tokens})"
        for layer in (ZERO, JOINT):
            yield f"joint-sampler(layer='{folder / layer}',tokens={tokens})"


def trained(folder: Path, tasks: str) -> Iterator[Ways]:
    """The runs of a folder, each beside the model that it began with."""
    plain, canvas = MODELS[tasks]
    learned = tasks_named(tasks)
    yield Ways("dparallel", canvas, UNMASKING, tasks=learned)
    for run in ("unforced", "dparallel"):
        yield Ways("dparallel", str(folder / run / "model"), UNMASKING, tasks=learned)
    for model in (canvas, str(folder / "r2" / "model")):
        yield Ways("r2", model, ("static(block_length=32)", "threshold", "r2"), tasks=learned)
    for model in (plain, str(folder / "jacobi" / "model")):
        yield Ways("jacobi", model, ITERATING, tasks=learned)
    yield Ways("wedlm", plain, REORDERING[:2], tasks=learned)  # It has no mask.
    yield Ways("wedlm", str(folder / "wedlm" / "model"), REORDERING, tasks=learned)
    for model in (canvas, str(folder / "assd" / "model")):
        yield Ways("assd", model, ANY_SUBSET, tasks=learned)
    for draft in (canvas, str(folder / "deer" / "model")):
        yield Ways("deer", plain, DRAFTING, draft, learned)
    ways = ("static(block_length=32)", *sampling(folder))
    yield Ways("joint-sampler", canvas, ways, tasks=learned)


COLUMNS = {
    "model": "{model}", "draft": "{draft}", "way": "{way}", "right": "{right}/{outputs}",
    "equal": "{equal}/{outputs}", "tokens a forward": "{tokens_a_forward:.2f}",
    "rows a token": "{rows_a_token:.1f}", "accepted": "{accepted:.2f}",
    "tokens a second": "{tokens_a_second:.0f}",
}  # fmt: skip


def named(model: str) -> str:
    """A model of the catalogue by its name, a trained one by its run."""
    return model if model.startswith("paradecode/") else Path(model).parent.name


def measured(asked_of: Ways, given: Any) -> list[dict[str, Any]]:
    """A row for each way."""
    group, model, ways, draft, tasks = asked_of
    name = named(model)
    with LLM(model, draft_model=draft) as llm:
        if group == "joint-sampler":
            sizes = llm.config.vocab_size, llm.config.hidden_size
            require_trained(Path(given.trained, JOINT))
            joint_layer(0.0, *sizes).save(Path(given.trained, ZERO))
        found = [(task, one) for task in tasks for one in task.held_out(given.instances)]
        asked = [llm.chat_tokens([{"role": "user", "content": one.prompt}]) for _, one in found]
        made: dict[str, list[Any]] = {way: [] for way in ways}
        spent = dict.fromkeys(ways, 0.0)
        batches = range(0, len(asked), given.batch)
        warm_up(llm, ways)
        for number in track(range(given.rounds), description=f"{group}: {name}", console=err):
            for first in batches:
                for way in ways:
                    began = time.perf_counter()
                    outputs = llm.complete(
                        asked[first : first + given.batch], decoder=way, temperature=0, seed=0,
                        max_tokens=given.max_tokens,
                    )  # fmt: skip
                    spent[way] += time.perf_counter() - began
                    if number == 0:
                        made[way] += outputs
    rows = []
    for way, outputs in made.items():
        tokens = sum(one.stats.generated for one in outputs)
        drafted = sum(one.stats.drafted for one in outputs)
        texts = [one.text.strip() for one in outputs]
        pairs = zip(outputs, made[ways[0]], strict=True)
        rows.append({
            "model": name,
            "draft": named(draft or ""),
            "way": way.replace(f"{Path(given.trained)}/", ""),
            "outputs": len(outputs),
            "right": sum(task.check(one, t) for (task, one), t in zip(found, texts, strict=True)),
            "equal": sum(a.token_ids == b.token_ids for a, b in pairs),
            "tokens_a_forward": tokens / sum(one.stats.forwards for one in outputs),
            "rows_a_token": sum(one.stats.rows for one in outputs) / tokens,
            "accepted": sum(one.stats.accepted for one in outputs) / max(drafted, 1),
            "tokens_a_second": given.rounds * tokens / spent[way],
        })  # fmt: skip
    return rows


def main() -> None:
    sizes = {"instances": 4, "rounds": 3, "batch": 1, "max_tokens": 96}
    given = options(__doc__, **sizes, trained="", tasks="simple", groups="").parse_args()
    groups: dict[str, list[dict[str, Any]]] = {}
    for asked_of in trained(Path(given.trained), given.tasks) if given.trained else SHIPPED:
        if given.groups and asked_of.group not in given.groups.split(","):
            continue
        groups.setdefault(asked_of.group, []).extend(measured(asked_of, given))
    for rows in groups.values():
        show(rows, COLUMNS)
    settings = {name: getattr(given, name) for name in sizes}
    target, draft = MODELS[given.tasks]
    save(stamped(target=target, draft=draft, **settings, groups=groups), given.out)


if __name__ == "__main__":
    main()
