"""The models of the graded tasks: plain decoding beside canvases, whole ones and in blocks.

    python -m tools.figures.graded [--instances 12] [--rounds 2] [--batch 1] [--max-tokens 96]
        [--out FILE.json]

The diffusion model was trained with full attention and with attention in blocks, so the same
weights are measured as both. Figures are those of ``tools.figures.hybrids``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from paradecode.models.catalogue import pull
from paradecode_lab.measure.tasks.tasks import SETS
from tools.figures.hybrids import COLUMNS, Ways, measured
from tools.script import options, save, show, stamped

PLAIN, CANVAS = "paradecode/graded-autoregressive", "paradecode/graded-diffusion"
BLOCK = 8
WHOLE = (
    "static", "static(block_length=8)", "threshold", "threshold(block_length=8)",
    "threshold(block_length=8,cache=prefix)", "threshold(block_length=8,cache=dual)",
)  # fmt: skip
IN_BLOCKS = (
    "static(cache=prefix)", "threshold(threshold=0.95,cache=prefix)", "threshold(cache=prefix)",
    "threshold(threshold=0.7,cache=prefix)", "threshold(threshold=0.5,cache=prefix)",
    "factor(cache=prefix)", "freedave(cache=prefix)",
)  # fmt: skip


def block_model(folder: Path) -> str:
    """The diffusion model with attention in blocks, written to ``folder``."""
    shutil.copytree(pull(CANVAS), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"attention": "block", "block_length": BLOCK}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return str(folder)


def main() -> None:
    sizes = {"instances": 12, "rounds": 2, "batch": 1, "max_tokens": 96}
    given = options(__doc__, **sizes).parse_args()
    with tempfile.TemporaryDirectory() as place:
        blocks = block_model(Path(place) / f"blocks-{BLOCK}" / "model")
        ways = (
            Ways("graded", PLAIN, ("greedy", "prompt-lookup"), tasks=SETS["graded"]),
            Ways("graded", CANVAS, WHOLE, tasks=SETS["graded"]),
            Ways("graded", blocks, IN_BLOCKS, tasks=SETS["graded"]),
        )
        rows = [row for each in ways for row in measured(each, given)]
    show(rows, COLUMNS)
    settings = {name: getattr(given, name) for name in sizes}
    save(stamped(plain=PLAIN, canvas=CANVAS, block=BLOCK, **settings, rows=rows), given.out)


if __name__ == "__main__":
    main()
