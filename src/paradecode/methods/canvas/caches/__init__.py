"""CacheRule rules by name; every module of this folder is loaded, and registers what it holds."""

from __future__ import annotations

from paradecode.methods.canvas.caches.base import CacheRule
from paradecode.methods.canvas.parts import Parts

CACHES: Parts[CacheRule] = Parts("cache", __name__, __path__)
