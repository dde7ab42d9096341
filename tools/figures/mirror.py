"""Counts what Mirror-SD prepares: blocks that are there in time, and forwards of the draft model.

    python -m tools.figures.mirror STREAMS [--model FILE] [--draft-model FILE] [--per-group 1]
        [--max-tokens 48] [--out FILE.json]
    python -m tools.figures.mirror FILE.json --into docs/methods.md

STREAMS is the folder of `paradecode train head ppd --model DRAFT`. Every way decodes the same
prompts greedily: without prepared branches, with those that the draft model proposes, and with
those that the target's early exit announces; each with a token a draft forward, and with streams.

``hits`` is the share of verifications of a block whose outcome had been prepared, and
``draft forwards`` are those of the draft model for each forward of the target. All figures are
counts, so the load of the machine does not matter.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from rich.progress import track

from paradecode import LLM
from paradecode.core.decoder import DRAFT, Verdict
from paradecode.methods.draft.schedules.overlapped import ChainDraft, Mirror
from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
from paradecode_lab.measure.tables import Column
from paradecode_lab.training.heads.training import HEAD
from tools.script import Row, err, options, stamped, tabulate

WAYS = {
    "none": "candidates=0",
    "draft": "announce=draft",
    "target, half": "depth=0.5",
    "target, all": "depth=1.0",
}
"""Who announces the outcomes -> the setting of the method."""
COLUMNS: tuple[Column[Row], ...] = (
    Column("announced by", lambda row: row["announced"]),
    Column("streams", lambda row: row["streams"]),
    Column("hits", lambda row: f"{row['hits']:.0%}"),
    Column("tokens a forward", lambda row: f"{row['tokens_a_forward']:.2f}"),
    Column("draft forwards", lambda row: f"{row['draft_forwards']:.2f}"),
    Column("equal", lambda row: f"{row['equal']} of {row['prompts']}"),
)


@contextmanager
def counted(llm: LLM) -> Iterator[dict[str, int]]:
    """Count the draft model's forwards, the verified blocks, and those with a prepared outcome."""
    counts = {"draft": 0, "blocks": 0, "hits": 0}
    model, likely = llm.engine.models[DRAFT], list[Any]()
    run, announced, commit = model.forward, Mirror._announced, ChainDraft.commit

    def forward(spans: Any) -> Any:
        counts["draft"] += len(spans)
        return run(spans)

    def announce(self: Mirror, *given: Any) -> Any:
        whole, likely[:] = yield from announced(self, *given)
        return whole, list(likely)

    def committed(self: ChainDraft, verdict: Verdict) -> None:
        counts["blocks"] += bool(self.tokens)
        counts["hits"] += (len(verdict.tokens) - 1, verdict.tokens[-1]) in likely
        commit(self, verdict)

    with (
        patch.object(model, "forward", forward),
        patch.object(Mirror, "_announced", announce),
        patch.object(ChainDraft, "commit", committed),
    ):
        yield counts


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each way; the first RUN is the folder of the streams."""
    rows = []
    with LLM(given.model, draft_model=given.draft_model or "default", backend="native") as llm:
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
        asked = [item.token_ids for item in items]
        plain = llm.complete(asked, decoder="greedy", temperature=0, max_tokens=given.max_tokens)
        ways = [(way, streams) for way in WAYS for streams in (0, 1)]
        for way, streams in track(ways, "ways", console=err):
            spec = f"mirror-sd({WAYS[way]}"
            spec += f",streams='{given.runs[0] / HEAD}')" if streams else ")"
            with counted(llm) as counts:
                made = [
                    llm.complete([one], decoder=spec, temperature=0, max_tokens=given.max_tokens)[0]
                    for one in asked
                ]
            forwards = sum(one.stats.forwards for one in made)
            rows.append({
                "announced": way, "streams": "yes" if streams else "no",
                "hits": counts["hits"] / counts["blocks"],
                "tokens_a_forward": sum(one.stats.generated for one in made) / forwards,
                "draft_forwards": counts["draft"] / forwards, "prompts": len(made),
                "equal": sum(a.token_ids == b.token_ids for a, b in zip(made, plain, strict=True)),
            })  # fmt: skip
        model = llm.model
    drafting = given.draft_model or model
    return stamped(model=model, draft_model=drafting, max_tokens=given.max_tokens, ways=rows)


def main() -> None:
    tabulate(options(__doc__, per_group=1, max_tokens=48, draft_model=""), COLUMNS, measured)


if __name__ == "__main__":
    main()
