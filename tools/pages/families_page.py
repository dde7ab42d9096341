"""Writes into a page which models open, from the registry of families.

python -m tools.pages.families_page docs/models.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paradecode.models.families import BY_CLASS, FAMILIES
from paradecode.models.folder_config import ARCHITECTURES
from paradecode.models.gguf_file import INTERLEAVED
from paradecode.models.masked_diffusion import FAMILIES as MASKED
from tools.pages.marked import put
from tools.structure import ROOT

LISTED = ROOT / "bench" / "small_models.json"
"""The most used small models, with their date and source, and transformers' class of each."""
WRAPPED = {
    "Gemma3ForConditionalGeneration": "gemma3", "Gemma4ForConditionalGeneration": "gemma4",
    "Mistral3ForConditionalGeneration": "ministral3", "Qwen3_5ForConditionalGeneration": "qwen35",
    "Step3VLForConditionalGeneration": "step3",
}  # fmt: skip
"""Classes of models that also see pictures, and the family of their text part."""

IN_LLAMA = {"mixtral": "`llama`, with experts"}
"""Families whose GGUF files have the architecture of Llama."""


def families() -> str:
    """Return the table of families: their names in folders and in GGUF files."""
    lines = ["| family | class in `architectures` | GGUF |", "|---|---|---|"]
    for family in sorted(FAMILIES, key=lambda each: each.name):
        wrapped = [name for name, own in WRAPPED.items() if own == family.name]
        known = [name for name, own in BY_CLASS.items() if own is family]
        names = ", ".join(f"`{name}`" for name in [*known, *wrapped])
        gguf = ", ".join(f"`{name}`" for name in family.gguf) or IN_LLAMA.get(family.name, "no")
        lines.append(f"| {family.name} | {names} | {gguf} |")
    for name, own in ARCHITECTURES.items():
        gguf = "`qwen3moe`" if "Moe" in name else f"`{own}`" if own in INTERLEAVED else "`llama`"
        lines.append(f"| {own} | `{name}` | {gguf} |")
    masked = ", ".join(f"`{name}`" for name in MASKED)
    stored = [name for name in INTERLEAVED if name not in (*ARCHITECTURES.values(), "qwen3moe")]
    found = ", ".join(f"`{name}`" for name in stored)
    lines.append(f"| diffusion | {masked} | {found} |")
    return "\n".join(lines)


def used() -> str:
    """Return which of the most used small models open, and which do not."""
    listed = json.loads(LISTED.read_text("utf-8"))
    opens = {*BY_CLASS, *ARCHITECTURES, *WRAPPED}
    found = [[name for name, kind in listed["models"] if (kind in opens) == known]
             for known in (True, False)]  # fmt: skip
    others = f" These do not: {'; '.join(found[1])}." if found[1] else ""
    return (
        f"Of the most used small models ({listed['source']}, {listed['date']}) these open:"
        f" {'; '.join(found[0])}.{others}"
    )


def main(page: str) -> None:
    """Write the table and the list into the page."""
    put(Path(page), "families", families())
    put(Path(page), "used", used())


if __name__ == "__main__":
    main(*sys.argv[1:])
