"""Commit policies by name, for policies that work on top of another one."""

from __future__ import annotations

from paradecode.methods.canvas.parts import Parts
from paradecode.methods.canvas.policies.base import Policy

POLICIES: Parts[Policy] = Parts("policy", __name__, __path__)
