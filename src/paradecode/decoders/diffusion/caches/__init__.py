"""Cache rules by name; every module of this folder is loaded, and registers what it holds."""

from __future__ import annotations

from paradecode.decoders.diffusion.caches.base import Cache
from paradecode.decoders.diffusion.parts import Parts

CACHES: Parts[Cache] = Parts("cache", __name__, __path__)
