"""No cache: the reference of every other one."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.decoders.diffusion.caches import CACHES
from paradecode.decoders.diffusion.caches.base import Cache, Plan, everything
from paradecode.decoders.diffusion.canvas import Canvas
from paradecode.decoders.diffusion.view import Window


@CACHES.add("none")
@dataclass
class NoCache(Cache):
    """Every forward computes every row."""

    def plan(self, canvas: Canvas, window: Window) -> Plan:
        return everything(canvas, window)
