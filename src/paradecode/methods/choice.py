"""Choose the method that a caller asked for: by name, in vLLM's form, or with a tuned profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from paradecode.core.checks import json_object, own_names, text
from paradecode.core.decoder import DRAFT
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.ngram_table import packaged
from paradecode.methods.parts import find
from paradecode.methods.spec_text import name_and_settings, named
from paradecode.methods.specs import Spec, parse

SCHEMA = "paradecode-profile/1"
MAX_BYTES = 1 << 24


@dataclass(frozen=True)
class Profile:
    """The method that ``paradecode tune`` found for a model.

    Attributes:
        decoder: spec of the method.
        model: name of the model for which it was tuned.
        record: the whole file, including the search and its measurements.
    """

    decoder: str
    model: str
    record: Mapping[str, Any]

    @property
    def spec(self) -> Spec:
        return parse(self.decoder)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Profile:
        """Read a profile from a file.

        Raises:
            InvalidInput: if the file cannot be read, is no profile, or names an unknown method.
        """
        record = json_object(Path(path), "profile", MAX_BYTES)
        if record.get("schema") != SCHEMA:
            fix = f"give a file that `paradecode tune` wrote, with schema {SCHEMA}"
            raise InvalidInput("profile schema", record.get("schema"), fix)
        for name in ("decoder", "model"):
            text(MAX_BYTES)(f"profile {name}", record.get(name))
        parse(record["decoder"])
        return cls(record["decoder"], record["model"], record)


AUTO = "auto"
"""The name that stands for the default method of the model's family."""
DEFAULT_DECODERS = {"autoregressive": "prompt-lookup", "diffusion": "threshold"}
PLAIN_DECODERS = {"autoregressive": "greedy", "diffusion": "static"}
"""Family -> its plain method, which decodes one token per forward and is the baseline for others.
"""

Decoder = str | Mapping[str, Any] | Spec | None
"""A method in the forms that callers may give; None means plain decoding."""


def choose(
    decoder: Decoder,
    speculative_config: str | Mapping[str, Any] | None = None,
    profile: str | PathLike[str] | None = None,
    spelled: Callable[[str], str] = str,
) -> Spec | Profile | str | None:
    """Return the method that a caller chose, or :data:`AUTO` or None (plain decoding) unchanged.

    AUTO and None depend on the model's family, which is not known here.

    Args:
        spelled: maps the name of a setting to the name that the caller uses for it, for errors.

    Raises:
        InvalidInput: if two of the three settings are given, or one is not understood.
    """
    name, config = spelled("decoder"), spelled("speculative_config")
    if profile is not None:
        if decoder != AUTO or speculative_config is not None:
            raise InvalidInput(spelled("profile"), str(profile), f"leave {name} and {config} out")
        return Profile.load(profile)
    if speculative_config is not None:
        if decoder != AUTO:
            raise InvalidInput(config, speculative_config, f"leave {name} out")
        return _configured(speculative_config)
    return decoder if decoder is None or decoder == AUTO else parse(decoder)


def _configured(config: str | Mapping[str, Any]) -> Spec:
    """Return the method of a vLLM config, whose ``model`` may be the folder of a draft head."""
    if isinstance(config, str) and config.lstrip().startswith("{"):
        name, given = name_and_settings(config)
    elif isinstance(config, Mapping):
        name, given = named(config)
    else:
        return parse(config)
    method = find("method", name)
    takes = {parameter.name for parameter in method.parameters} if method else set()
    if "head" in takes:
        given = own_names(given, {"model": "head"})
    return parse({"method": name, **given})


def spec_for(decoder: Decoder, model: str, families: Sequence[str], own: str = "") -> Spec:
    """Return the method for a model; raise InvalidInput if it cannot decode this model.

    Args:
        model: the model's name.
        families: families of methods that can decode the model, the preferred one first.
        own: the model's own method for ``auto``; empty takes the default of its family.
    """
    if not families:
        raise InvalidInput("model", model, "it is not causal, and has no mask token")
    if decoder is None or decoder == AUTO:
        names = PLAIN_DECODERS if decoder is None else DEFAULT_DECODERS
        spec = parse(own if own and decoder == AUTO else names[families[0]])
        takes = {parameter.name for parameter in spec.method.parameters}
        table = packaged(model) if "table" in takes else ""
        return spec.changed({"table": table}) if table else spec
    spec = parse(decoder)
    if spec.method.family not in families:
        usable = (f"{name} methods, such as {DEFAULT_DECODERS[name]}" for name in families)
        fix = " or ".join(usable)
        raise InvalidInput("decoder", spec.method.name, f"{model} needs {fix}")
    return spec


def check_draft_model(decoder: Spec, loaded: str | None) -> None:
    """Raise InvalidInput if a method needs a draft model other than the loaded one."""
    if DRAFT in decoder.method.models and loaded is None:
        fix = f"{decoder.method.name} drafts with a smaller model: name it, or give its file"
        raise InvalidInput("draft_model", None, fix)
    if decoder.draft_model not in (None, loaded):
        fix = f"the one that was loaded is {loaded}"
        raise InvalidInput("draft_model", decoder.draft_model, fix)


def with_settings(decoder: Spec, rest: dict[str, Any]) -> Spec:
    """Move the settings of the method from ``rest`` into its spec, and return the new spec.

    This serves calls such as ``generate(steps=...)`` in LLaDA's scripts.
    """
    method = decoder.method
    known = {*(entry.name for entry in method.parameters), *method.names} - {"model"}
    own = own_names({name: rest.pop(name) for name in [*rest] if name in known}, method.names)
    return decoder.changed(own) if own else decoder
