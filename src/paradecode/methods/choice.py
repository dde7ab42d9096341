"""Which method a caller chose: by its name, under vLLM's name for it, or by a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.profile import Profile
from paradecode.methods.registry import Spec, parse

AUTO = "auto"
"""The default method of the model's family."""
DEFAULT_DECODERS = {"autoregressive": "prompt-lookup", "diffusion": "threshold"}
PLAIN_DECODERS = {"autoregressive": "greedy", "diffusion": "static"}
"""What each family's methods are measured against: one token a forward."""

Decoder = str | Mapping[str, Any] | Spec | None
"""A method as callers write it; None is plain decoding."""


def choose(
    decoder: Decoder,
    speculative_config: str | Mapping[str, Any] | None = None,
    profile: str | PathLike[str] | None = None,
    spelled: Callable[[str], str] = str,
) -> Spec | Profile | str | None:
    """What was chosen; :data:`AUTO` and None (plain decoding) depend on the model's family.

    Args:
        spelled: how the caller writes the names of these settings, for errors.

    Raises:
        InvalidInput: two of the three were given, or the one is not understood.
    """
    name, config = spelled("decoder"), spelled("speculative_config")
    if profile is not None:
        if decoder != AUTO or speculative_config is not None:
            raise InvalidInput(spelled("profile"), str(profile), f"leave {name} and {config} out")
        return Profile.load(profile)
    if speculative_config is not None:
        if decoder != AUTO:
            raise InvalidInput(config, speculative_config, f"leave {name} out")
        return parse(speculative_config)
    return decoder if decoder is None or decoder == AUTO else parse(decoder)
