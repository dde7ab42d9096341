"""Commit policies by name, for policies that work on top of another one."""

from __future__ import annotations

from paradecode.decoders.diffusion.parts import Parts
from paradecode.decoders.diffusion.policies.base import Policy

POLICIES: Parts[Policy] = Parts("policy", __name__, __path__)
