"""`paradecode train chunk-scores`: calibrate `atts` on other questions."""

from __future__ import annotations

from pathlib import Path

from paradecode.cli.console import out
from paradecode.cli.options import Loading, grouped, option
from paradecode.cli.outputs import writable
from paradecode.cli.progress import watched
from paradecode_lab.commands.train_steps import Output


@grouped
def chunk_scores(
    output: Output,
    loading: Loading,
    draft_model: str = option(..., "The small model that writes the chunks."),
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: the package's."),
    limit: int = option(0, "Only so many conversations; 0 takes all.", min=0),
    chunk: int = option(64, "Tokens of a chunk.", min=1, max=4096),
    temperature: float = option(0.7, "As that of the searches."),
    seed: int = option(0, "Of the chunks.", min=0),
) -> None:
    """How unlikely a model finds chunks of its draft model, for `atts(scores=FILE)`."""
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
