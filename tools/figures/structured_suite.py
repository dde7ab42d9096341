"""The official JSON Schema test suite: is what a schema lets through valid, and what it stops not?

    python -m tools.figures.structured_suite SUITE [--max-tokens 96] [--out FILE.json]

SUITE is a folder or an archive (.tgz) with the suite's files, as its repository has them for one
draft (tests/draft2020-12). Under each schema that can be enforced every method writes one document;
what ended by itself must validate, and the exact methods must agree token by token. The suite's own
documents are put before the constraint as well, which may differ with the suite. Exit status 1 if a
document that was written is invalid or differs.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from paradecode import LLM
from paradecode.constraints.compile import Compiler
from paradecode.core.errors import InvalidInput
from tools.script import options, save, stamped

SAMPLED = {"temperature": 1.0, "seed": 7}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("greedy", {}),
    "lookup": ("prompt-lookup(budget=fixed)", {}),
    "plain, sampled": ("greedy", SAMPLED),
    "token-recycling, sampled": ("token-recycling(budget=fixed)", SAMPLED),
}
SAME = {"lookup": "plain", "token-recycling, sampled": "plain, sampled"}
"""Method -> the one whose tokens it must give."""

ASK = [{"role": "user", "content": "Write one short example document."}]


def groups(suite: Path) -> Iterator[tuple[str, Any]]:
    """Name of each group of tests, and the group: ``schema`` and ``tests``."""
    for name, text in sorted(_files(suite)):
        for group in json.loads(text):
            yield f"{name}: {group['description']}", group


def _files(suite: Path) -> Iterator[tuple[str, str]]:
    if suite.is_dir():
        for path in suite.rglob("*.json"):
            yield path.relative_to(suite).as_posix(), path.read_text("utf-8")
        return
    with tarfile.open(suite) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None and member.name.endswith(".json"):
                yield member.name, file.read().decode()


def ask(llm: LLM, schema: Any, max_tokens: int) -> tuple[Counter[str], list[str]]:
    """What became of a schema's documents, and what was wrong with them.

    Raises:
        InvalidInput: the schema cannot be enforced.
    """
    counts, wrong, tokens = Counter[str](), list[str](), dict[str, list[int]]()
    for name, (decoder, settings) in METHODS.items():
        answer = llm.chat(
            ASK, decoder=decoder, max_tokens=max_tokens,
            constraint={"type": "json_schema", "value": schema}, **settings,
        )  # fmt: skip
        tokens[name] = answer.token_ids
        counts["forwards"] += answer.stats.forwards
        counts["tokens"] += len(answer.token_ids)
        if tokens[name] != tokens[SAME.get(name, name)]:
            wrong.append(f"{name}: other tokens than {SAME[name]}")
        if answer.finish_reason != "stop":
            counts["unfinished"] += 1
            continue
        try:
            valid = Draft202012Validator(schema).is_valid(json.loads(answer.text))
        except re.error:  # Python does not know all of JSON Schema's expressions.
            counts["not judged"] += 1
            continue
        except ValueError:
            valid = False
        counts["documents"] += 1
        if not valid:
            wrong.append(f"{name}: {answer.text[:200]}")
    return counts, wrong


def judge(llm: LLM, compiler: Compiler, group: Any) -> Counter[str]:
    """What the constraint says of the suite's documents, as JSON is written here.

    Raises:
        InvalidInput: the schema cannot be enforced.
    """
    constraint = compiler.compile({"type": "json_schema", "value": group["schema"]})
    ends = llm.config.eos_tokens
    counts = Counter[str]()
    for test in group["tests"]:
        text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
        tokens = llm.tokenizer.encode(text, special=False, parse_special=False)
        matcher = constraint.follow(ends)
        lets = matcher.possible(tokens) == len(tokens) and matcher.allows(tokens, ends[0])
        if lets == test["valid"]:
            counts["judged alike"] += 1
        else:
            counts["valid, stopped" if test["valid"] else "invalid, let through"] += 1
    return counts


def main() -> int:
    parser = options(__doc__, max_tokens=96)
    parser.add_argument("suite", type=Path)
    given = parser.parse_args()
    total: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {}
    with LLM() as llm:
        compiler = Compiler(llm.tokenizer, llm.config.vocab_size, llm.config.eos_tokens)
        head = stamped(
            model=llm.model,
            backend=llm.backend.name,
            max_tokens=given.max_tokens,
            methods=METHODS,
        )
        for name, group in groups(given.suite):
            total["schemas"] += 1
            try:
                total += judge(llm, compiler, group)
                counts, found = ask(llm, group["schema"], given.max_tokens)
            except InvalidInput:
                total["refused"] += 1
                continue
            total += counts
            if found:
                wrong[name] = found
            if total["schemas"] % 50 == 0:
                print(dict(total), file=sys.stderr)
    result = {"counts": dict(total), "wrong": wrong}
    print(json.dumps(result, indent=1))
    save({**head, **result}, given.out)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
