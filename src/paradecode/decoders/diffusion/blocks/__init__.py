"""Block rules by name; every module of this folder is loaded, and registers what it holds."""

from __future__ import annotations

from paradecode.decoders.diffusion.blocks.base import Blocks
from paradecode.decoders.diffusion.parts import Parts

BLOCKS: Parts[Blocks] = Parts("blocks", __name__, __path__)
