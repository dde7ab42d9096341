"""`paradecode train ngram-table`: what a model often says, for `prompt-lookup(table=FILE)`."""

from __future__ import annotations

from pathlib import Path

from paradecode.cli.console import out
from paradecode.cli.options import Loading, argument, grouped, option
from paradecode.cli.outputs import writable
from paradecode.cli.progress import watched
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.ngram_table import MOST_RANKS
from paradecode_lab.commands.train_steps import Output


@grouped
def ngram_table(
    output: Output,
    loading: Loading,
    texts: list[Path] | None = argument(
        None, "UTF-8 texts, one document each; default: the model's own."
    ),
    data: list[Path] | None = option(
        None,
        "Count the answers in a folder that `train head --data` filled; repeat, also a folder.",
    ),
    alternatives: int = option(
        1, "Tokens kept of a context, for drafts of trees.", min=1, max=MOST_RANKS
    ),
    own: int = option(2000, "Answers that the model makes up.", min=10, max=1_000_000),
    max_tokens: int = option(192, "Most tokens of each of them.", min=1),
    seed: int = option(0, "Of what it makes up.", min=0),
) -> None:
    """Count what follows n-grams, for `prompt-lookup(table=FILE)` and `aded`; changes no output."""
    writable("OUTPUT", output)
    from paradecode.methods.draft.drafters.retrieval import read_texts as read_files
    from paradecode_lab.training.heads.texts import LONGEST_TEXT, TEXTS, read_texts
    from paradecode_lab.training.ngrams.counting import count_ngrams
    from paradecode_lab.training.ngrams.own_text import own_answers

    with loading.open() as llm:
        tokens = list[list[int]]()
        for folder in data or ():
            for each in read_texts(folder / TEXTS, LONGEST_TEXT):
                tokens.append(each.tokens[each.start :].tolist())
        if texts:
            tokens += read_files(
                texts, lambda text: llm.tokenizer.encode(text, special=False, parse_special=False)
            )
        elif not data and "autoregressive" not in llm.families:
            raise InvalidInput("model", llm.model, "give texts: it cannot continue one")
        elif not data:
            tokens = watched("decoding", lambda tick: own_answers(llm, own, max_tokens, seed, tick))
        table = count_ngrams(tokens, llm.config.vocab_size, alternatives)
    table.save(output)
    count = sum(map(len, tokens))
    out.print(f"{len(table.keys)} n-grams of {count} tokens in {output}",
              soft_wrap=True, highlight=False)  # fmt: skip
