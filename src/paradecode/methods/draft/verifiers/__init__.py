"""Verifiers decide which draft tokens are accepted and which token follows them."""

from __future__ import annotations

from paradecode.methods.draft.verifiers.coupled import Verifier, coupled

__all__ = ["Verifier", "coupled"]
