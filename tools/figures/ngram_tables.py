"""How often a model's table of n-grams names the next token of its answers, whatever came before.

    python -m tools.figures.ngram_tables [--models FILE ...] [--max-tokens 96] [--out FILE.json]

The package's prompts are answered plainly, greedy; each token behind an answer's first is looked up
behind those before it in the answer. None of these prompts was used to make the package's tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from paradecode import LLM, SamplingParams
from paradecode.methods.draft.ngram_table import ORDER, NgramTable, load_ngrams, packaged
from paradecode.prompts import first_turns, load_prompts
from tools.script import err, options, save, show, stamped

COLUMNS = {
    "model": "{model}", "n-grams": "{entries}", "group": "{group}", "tokens": "{tokens}",
    "said something": "{known:.3f}", "named": "{named:.3f}",
}  # fmt: skip


def shares(table: NgramTable, answers: Sequence[Sequence[int]]) -> tuple[int, float, float]:
    """How many tokens were looked up, for which share of them the table names a token, and for
    which it is right."""
    tokens = known = named = 0
    for answer in answers:
        for end in range(1, len(answer)):
            found = table.after(tuple(answer[max(0, end - ORDER) : end]))
            tokens += 1
            known += found is not None
            named += found is not None and found[0] == answer[end]
    return tokens, known / max(tokens, 1), named / max(tokens, 1)


def main() -> None:
    parser = options(__doc__, max_tokens=96)
    parser.add_argument("--models", nargs="*", default=[""], help="none: the default model")
    given = parser.parse_args()
    rows = []
    for source in given.models:
        with LLM(source or None) as llm:
            table = load_ngrams(packaged(llm.model))
            items = first_turns(load_prompts(), llm.chat_tokens, given.max_tokens)
            params = SamplingParams(temperature=0.0, max_tokens=given.max_tokens)
            err.print(f"{llm.model}: {len(items)} prompts", highlight=False)
            answers = llm.complete([item.token_ids for item in items], params, decoder=None)
            said = [(item.group, answer.token_ids) for item, answer in zip(items, answers)]
            for group in ("all", *sorted({group for group, _ in said})):
                mine = [answer for own, answer in said if group in ("all", own)]
                tokens, known, named = shares(table, mine)
                rows.append({"model": llm.model, "entries": len(table.keys), "group": group,
                             "tokens": tokens, "known": known, "named": named})  # fmt: skip
    show(rows, COLUMNS)
    save(stamped(max_tokens=given.max_tokens, tables=rows), given.out)


if __name__ == "__main__":
    main()
