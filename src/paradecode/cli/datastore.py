"""`paradecode datastore`: the corpus that `retrieval` drafts from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paradecode.cli.console import out
from paradecode.cli.options import ModelName, grouped
from paradecode.cli.outputs import writable


@grouped
def datastore(
    output: Annotated[Path, typer.Argument(help="Write to this file.")],
    paths: Annotated[list[Path], typer.Argument(help="UTF-8 texts, one document each.")],
    model: ModelName = None,
) -> None:
    """Build the file that the method `retrieval` drafts from, with a model's tokenizer."""
    from paradecode.methods.draft.drafters.retrieval import build_datastore
    from paradecode.models.catalogue import open_model

    writable("OUTPUT", output)
    tokenizer = open_model(model).tokenizer
    count = build_datastore(
        paths, lambda text: tokenizer.encode(text, special=False, parse_special=False), output
    )
    out.print(f"{count} tokens in {output}", soft_wrap=True, highlight=False)
