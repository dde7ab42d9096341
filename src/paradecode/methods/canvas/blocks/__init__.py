"""Block rules by name; every module of this folder is loaded, and registers what it holds."""

from __future__ import annotations

from paradecode.methods.canvas.blocks.base import Blocks
from paradecode.methods.canvas.parts import Parts

BLOCKS: Parts[Blocks] = Parts("blocks", __name__, __path__)
