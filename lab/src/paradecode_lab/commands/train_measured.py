"""`paradecode train chunk-scores`, `draft-tree`, `priors`, `ngram-table`: count and measure."""

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
def chunk_scores(
    output: Output,
    loading: Loading,
    draft_model: str = option(..., "Use this small model to write the chunks."),
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: our prompts."),
    limit: int = option(0, "Use at most this many conversations; 0 uses all.", min=0),
    chunk: int = option(64, "Number of tokens of a chunk.", min=1, max=4096),
    temperature: float = option(
        0.7, "Sampling temperature; use the one of the searches.", min=0, max=100
    ),
    seed: int = option(0, "Seed of the chunks.", min=0),
) -> None:
    """Record a model's scores of its draft model's chunks, for `atts(scores=FILE)`."""
    writable("OUTPUT", output)
    from paradecode_lab.measure.prompts import load_prompts
    from paradecode_lab.training.chunk_scores import record_chunk_scores

    asked = [conversation.turns[0] for conversation in load_prompts(prompts)][: limit or None]
    with loading.open(draft_model=draft_model) as llm:
        chat = llm.chat_template is not None
        ids = [
            llm.chat_tokens([{"role": "user", "content": text}]) if chat else llm.encode(text)
            for text in asked
        ]
        found = watched(
            "chunks",
            lambda tick: record_chunk_scores(llm, ids, chunk, temperature, seed, tick),
        )
    found.save(output)
    out.print(f"{len(asked)} scores: atts(chunk={chunk},scores='{output}')",
              soft_wrap=True, highlight=False)  # fmt: skip


@grouped
def draft_tree(
    output: Output,
    loading: Loading,
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: our prompts."),
    limit: int = option(0, "Use at most this many conversations; 0 uses all.", min=0),
    max_tokens: int = option(128, "Generate at most this many tokens of an answer.", min=1),
    temperature: float = option(
        0.0, "Of the answers; above 0 for verifiers that test draws.", min=0.0, max=2.0
    ),
    seed: int = option(0, "Seed of the answers.", min=0),
) -> None:
    """Measure which tree nodes of `stand` this model accepts; this changes no output."""
    writable("OUTPUT", output)
    from paradecode_lab.training.acceptance.draft_tree import measure_tree
    from paradecode_lab.training.acceptance.workload import DraftWorkload

    workload = DraftWorkload(prompts, limit, max_tokens, temperature, seed)
    workload.check()
    with loading.open() as llm:
        items = workload.items(llm)
        tree = watched("decoding", lambda tick: measure_tree(llm, items, workload.params(), tick))
        tree.save(output, llm.config.name)
    best = sorted(tree.rates.values(), reverse=True)
    gains = ", ".join(f"{sum(best[:count]):.2f} of {count}" for count in (8, 16, 64))
    out.print(f"{len(best)} places in {output}; accepted of the best places: {gains}",
              soft_wrap=True, highlight=False)  # fmt: skip


@grouped
def priors(
    output: Output,
    loading: Loading,
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: our prompts."),
    limit: int = option(0, "Use at most this many conversations; 0 uses all.", min=0),
    max_tokens: int = option(128, "Generate at most this many tokens of an answer.", min=1),
) -> None:
    """Measure this model's first acceptance estimates of drafters; they change no output."""
    writable("OUTPUT", output)
    from paradecode.methods.draft.model_free import save_priors
    from paradecode_lab.training.acceptance.priors import measure_priors
    from paradecode_lab.training.acceptance.workload import DraftWorkload

    workload = DraftWorkload(prompts, limit, max_tokens)
    workload.check()
    with loading.open() as llm:
        items = workload.items(llm)
        found = watched(
            "decoding", lambda tick: measure_priors(llm, items, workload.params(), tick)
        )
        save_priors(output, llm.config.name, found)
    out.print(f"priors of {llm.config.name} in {output}", soft_wrap=True, highlight=False)


@grouped
def ngram_table(
    output: Output,
    loading: Loading,
    texts: list[Path] | None = argument(
        None, "UTF-8 texts, one document each; by default the model writes them."
    ),
    data: list[Path] | None = option(
        None,
        "Count the answers in a folder that `train head --data` filled; repeat for more.",
    ),
    alternatives: int = option(
        1, "Next tokens kept of a context, for draft trees.", min=1, max=MOST_RANKS
    ),
    own: int = option(2000, "Let the model write this many answers.", min=10, max=1_000_000),
    max_tokens: int = option(192, "Generate at most this many tokens of each answer.", min=1),
    seed: int = option(0, "Seed of the answers that the model writes.", min=0),
) -> None:
    """Count which tokens follow n-grams, for `prompt-lookup(table=FILE)` and `aded`."""
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
