"""Measures what each search gains and costs, beside a single sample.

    python -m tools.figures.searches [--task asked-sums] [--journal FILE.jsonl] [--model FILE]
        [--draft FILE] [--reward FILE] [--hint TEXT] [--only "one sample;ffs(n=8)"]
        [--seconds 280] [--out FILE.json]

The questions are held-out instances of tasks with checkable answers
(:mod:`paradecode_lab.measure.tasks`). All searches answer a question before the next one. Its
prompt is cached before, so that rows, forwards and seconds are the answers' own. The journal keeps
all measurements. A run ends after ``--seconds``, and the same command resumes it, with the same
commit and machine; the result has the date of the first question. ``checker`` is a scorer that
knows the right answer, and shows the best that the samples could give. It and the votes choose
among the branches of ``best-of(n=8)``, which are not decoded again and cost the same. The result
counts only questions that all searches answered. ``atts`` drafts with ``--draft``, by default the
model itself, which shows its cost and not its gain. ``--hint`` is written after each question.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.completion import SearchedBranch
from paradecode.models.catalogue import DEFAULT, open_model
from paradecode.search.strategies import find_strategy, strategies
from paradecode_lab.measure.machine import place_of, stamp
from paradecode_lab.measure.tasks.questions import CHECKED
from tools.script import REPOSITORY, err, options, save, show, stamped

SEARCHES = {
    "one sample": "best-of(n=1)", "best-of(n=8)": "best-of(n=8)",
    "best-of(n=8), reward": "best-of(n=8)", "ffs(n=8)": "ffs(n=8)",
    "ffs(n=8,keep=4,pick=vote)": "ffs(n=8,keep=4,pick=vote)",
    "a-star(k=4,step_tokens=32,budget=1024)": "a-star(k=4,step_tokens=32,budget=1024)",
    "a-star, reward": "a-star(k=4,step_tokens=32,budget=1024)",
    "beam(width=4)": "beam(width=4)",
    "diverse-beam(width=4,groups=4)": "diverse-beam(width=4,groups=4)",
    "superposed(k=4)": "superposed(k=4)",
    "superposed(k=4,alpha=0.54)": "superposed(k=4,alpha=0.54)", "atts(n=8)": "atts(n=8)",
}  # fmt: skip
"""Name of a line -> its search; ``reward`` means that the head of ``--reward`` scores."""
SAME = "best-of(n=8)"
WEIGHTED = "majority(n=8,votes=weighted)"
CHOSEN = {
    SAME: {
        "best-of(n=8), checker": SAME, "majority(n=8)": "majority(n=8)", WEIGHTED: WEIGHTED,
        "ffs(n=8,pick=last,keep=8)": "",
    },
    "best-of(n=8), reward": {f"{WEIGHTED}, reward": WEIGHTED},
}  # fmt: skip
"""Maps a search to the selections that choose among its branches.

The last selection, which has no search, chooses by length.
"""
COLUMNS = {
    "search": "{search}", "right": "{right:.0%}", "tokens": "{tokens:.0f}", "rows": "{rows:.0f}",
    "forwards": "{forwards:.0f}", "seconds": "{seconds:.2f}", "times one sample": "{times:.2f}",
}  # fmt: skip
MEASURED = ("right", "tokens", "rows", "forwards", "seconds")


def main() -> None:
    parser = options(
        __doc__, model="", draft="", task="asked-sums", hint="", tasks=40, max_tokens=96,
        temperature=0.7, journal="", seconds=280.0, reward="", only="",
    )  # fmt: skip
    given = parser.parse_args()
    asked = ("model", "draft", "task", "hint", "tasks", "max_tokens", "temperature", "reward")
    settings = {name: getattr(given, name) for name in asked}
    journal = Path(given.journal or f"bench/out/searches-{given.task}.jsonl")
    wanted = given.only.split(";") if given.only else [*SEARCHES]
    if not given.reward:
        wanted = [name for name in wanted if not name.endswith("reward")]
    wanted = [name for name in wanted if name in SEARCHES or name.split("(")[0] in strategies()]
    begun, done = read(journal, settings)
    end = time.monotonic() + given.seconds
    task = CHECKED[given.task]
    drafts = any(name.startswith("atts") for name in wanted)
    draft = given.draft or given.model or DEFAULT
    with (
        LLM(given.model or None, draft_model=draft if drafts else None) as llm,
        journal.open("a", encoding="utf-8") as file,
    ):
        for number, instance in enumerate(
            track(task.held_out(given.tasks), console=err, description="questions")
        ):
            question = f"{instance.prompt} {given.hint}".strip()
            prompt = llm.chat_tokens([{"role": "user", "content": question}])
            missing = [name for name in wanted if (number, name) not in done]
            if missing and time.monotonic() <= end:
                # Without this, the time of the first search would include the prompt.
                llm.complete([prompt], max_tokens=1)
            for name in missing:
                if time.monotonic() > end:
                    break
                reward = f"process-reward(path={given.reward!r})"
                scorer = reward if name.endswith("reward") else None
                forwards = llm.engine.forwards
                found = llm.complete(
                    [prompt], search=SEARCHES.get(name, name), temperature=given.temperature,
                    seed=number, max_tokens=given.max_tokens, scorer=scorer,
                )[0]  # fmt: skip
                took = found.search
                if took is None:
                    raise found.error or RuntimeError(name)
                record: dict[str, Any] = {
                    "number": number, "search": name, "right": task.check(instance, found.text),
                    "tokens": took.tokens, "rows": took.rows,
                    "forwards": llm.engine.forwards - forwards, "seconds": took.seconds,
                }  # fmt: skip
                records = [record]
                for other, search in CHOSEN.get(name, {}).items():
                    text = chosen(search, took.tree, task.scorer(instance), "checker" in other)
                    right = task.check(instance, text)
                    records.append({**record, "search": other, "right": right})
                for one in records:
                    done[number, one["search"]] = one
                    file.write(json.dumps(one) + "\n")
                file.flush()
        rows = summed(done, [*wanted, *(one for name in wanted for one in CHOSEN.get(name, {}))])
        if not rows:
            err.print("no question is whole yet: run it again")
            return
        show(rows, COLUMNS)
        if rows[0]["questions"] == given.tasks:
            named = open_model(given.draft).config.name if given.draft else ""
            names = {"model": llm.model, "draft": named}
            save({**stamped(**{**settings, **names}, searches=rows), "date": begun}, given.out)
        else:
            err.print(
                f"{rows[0]['questions']} of {given.tasks} questions: the same command goes on"
            )


def chosen(search: str, tree: Sequence[SearchedBranch], checker: Any, checks: bool) -> str:
    """Return the text that a search chooses among branches that were decoded before."""
    if not search:
        ended = [branch for branch in tree if branch.reason == "stop"]
        return max(ended, key=lambda branch: branch.tokens).text if ended else tree[0].text
    steps = find_strategy(search).search(SimpleNamespace(scorer=checks))  # type: ignore[arg-type]
    next(steps)
    reply: Any = tree
    try:
        while True:
            rated = steps.send(reply).branches  # type: ignore[union-attr]
            texts = [branch.text for branch in rated]
            reply = checker("", texts) if checks else [branch.score for branch in tree]
    except StopIteration as end:
        text: str = end.value.best.text
        return text


def read(
    journal: Path, settings: dict[str, Any]
) -> tuple[str, dict[tuple[int, str], dict[str, Any]]]:
    """Return the date on which the journal was begun, and the records in it.

    The records have the same settings, code and machine. If there is no journal, one is begun.
    """
    now = stamp(REPOSITORY)
    own = json.loads(json.dumps({**settings, "place": place_of(now)}))
    if not journal.exists():
        journal.parent.mkdir(parents=True, exist_ok=True)
        first = {"date": now["created"][:10], **own}
        journal.write_text(json.dumps(first) + "\n", "utf-8")
    first, *records = map(json.loads, journal.read_text("utf-8").split("\n")[:-1])
    begun = first.pop("date", "")
    if first != own:
        raise SystemExit(f"{journal} has other settings, code or machine ({first}): name another")
    return begun, {(record["number"], record["search"]): record for record in records}


def summed(done: dict[tuple[int, str], dict[str, Any]], wanted: list[str]) -> list[dict[str, Any]]:
    """Return the means over the questions that every search has answered."""
    whole = [
        number
        for number in sorted({number for number, _ in done})
        if all((number, name) in done for name in wanted)
    ]
    means: dict[str, dict[str, float]] = defaultdict(dict)
    for name in wanted if whole else ():
        for field in MEASURED:
            means[name][field] = float(np.mean([done[number, name][field] for number in whole]))
    return [
        {
            "search": name, "questions": len(whole), **found,
            "times": found["seconds"] / means[wanted[0]]["seconds"],
        }
        for name, found in means.items()
    ]  # fmt: skip


if __name__ == "__main__":
    main()
