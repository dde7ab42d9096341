"""Specs: a method with its settings, or several drafters fused into one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, cast

from paradecode.core.checks import own_names
from paradecode.core.decoder import DRAFT, Decoder, Guarantee, weakest
from paradecode.core.errors import InvalidInput
from paradecode.methods import parts as registered
from paradecode.methods.draft.fuse import Fused
from paradecode.methods.draft.loop import (
    Drafter,
    DraftSettings,
    DraftVerify,
    assemble,
    guarantee_under,
)
from paradecode.methods.parts import Method, checked, parameters_of, written
from paradecode.methods.spec_text import name_and_settings, named, parts_of

MOST_PARTS = 4
"""The largest number of drafters in a fusion."""


@dataclass(frozen=True)
class Spec:
    """A method with checked settings; calling it builds a fresh decoder for one request.

    Attributes:
        draft_model: name of the small draft model, if the spec names one.
        parts: the drafters of a fusion; ``settings`` then belong to the loop that runs the fusion.
    """

    method: Method
    settings: Mapping[str, Any]
    draft_model: str | None = dataclass_field(default=None, kw_only=True)
    parts: tuple[Spec, ...] = dataclass_field(default=(), kw_only=True)

    def __call__(self) -> Decoder:
        decoder: Decoder = self.method.build(**self.settings)
        return decoder

    @property
    def guarantee(self) -> Guarantee:
        """The method's guarantee with these settings."""
        under = self.method.under
        return weakest(self.method.guarantee, under(self.settings) if under else "exact")

    def changed(self, settings: Mapping[str, Any]) -> Spec:
        """Return the same spec with some settings replaced; raise InvalidInput for wrong ones."""
        if self.parts:
            parts = [(part.method.name, part.given) for part in self.parts]
            return fusion(parts, {**self.settings, **settings})
        return configured(self.method, {**self.given, **settings})

    @property
    def given(self) -> dict[str, Any]:
        """The settings from which :func:`configured` makes this spec."""
        model = {} if self.draft_model is None else {"model": self.draft_model}
        return {**self.settings, **model}

    def __str__(self) -> str:
        if not self.parts:
            return written(self.method.name, self.settings)
        *first, last = self.parts
        whole = written(last.method.name, {**last.settings, **self.settings})
        return "+".join([*map(str, first), whole])


def methods() -> Mapping[str, Method]:
    """Return name -> method for all methods.

    Methods are built in, registered by the program, or installed (``paradecode.decoders``).
    """
    return cast("Mapping[str, Method]", registered.known("method"))


def find(name: str) -> Method:
    """Return the method with this name or alias; raise InvalidInput if there is none."""
    found = registered.find("method", name)
    if found is None:
        raise InvalidInput("decoder", name, registered.near("method", name))
    return cast("Method", found)


def parse(spec: str | Mapping[str, Any] | Spec | None, trusted: bool = True) -> Spec:
    """Parse ``name``, ``name(key=value, ...)``, a JSON object, or a mapping with ``method``.

    ``a(x=1)+b`` is one method made of two drafters; in a mapping, ``method`` may also be a list of
    their names. None, ``none`` and ``""`` mean plain decoding.

    Args:
        trusted: False for a spec that came over a network: it may not name files of this machine.

    Raises:
        InvalidInput: if a method or setting is unknown or malformed, or a setting is given under
            two names. The error names it.
    """
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str):
        parts = parts_of(spec)
        name, given = name_and_settings(spec) if len(parts) == 1 else (spec, {})
    elif isinstance(spec, Mapping):
        name, given = named(spec)
    elif spec is None:
        name, given = "greedy", {}
    else:
        raise InvalidInput("decoder", spec, "give a text such as 'prompt-lookup(max_ngram=3)'")
    parts = parts_of(name)
    if len(parts) > 1:
        return fusion([name_and_settings(part) for part in parts], given, trusted)
    return configured(find(name), given, trusted)


def configured(method: Method, given: Mapping[str, Any], trusted: bool = True) -> Spec:
    """Return a method with settings, given by their names or aliases.

    The entry ``model`` is the small draft model of a method that drafts with one.

    Raises:
        InvalidInput: see :func:`parse`.
    """
    own = {key: value for key, value in given.items() if key != "model"}
    settings = checked(method, method.name, own, trusted)
    built = method.build(**settings)  # The method itself checks settings against one another.
    if isinstance(built, DraftVerify) and DRAFT in built.drafter.needs.runs:
        method = replace(method, models=(DRAFT,))  # It may depend on a setting.
    if DRAFT not in method.models:
        checked(method, method.name, given, trusted)  # Other methods take no model.
    draft_model = given.get("model")
    if not isinstance(draft_model, (str, type(None))):
        raise InvalidInput(f"{method.name}.model", draft_model, "name a model as a text")
    return Spec(method, settings, draft_model=draft_model)


def fusion(
    parts: Sequence[tuple[str, Mapping[str, Any]]], shared: Mapping[str, Any], trusted: bool = True
) -> Spec:
    """Return one method that fuses the drafters ``parts`` (pairs of name and settings).

    Settings of the loop apply to the whole fusion, wherever they are written. ``shared`` settings
    (from a JSON object) go to every drafter that has them.

    Raises:
        InvalidInput: if a drafter cannot be fused, or no drafter has a setting.
    """
    if len(parts) > MOST_PARTS:
        raise InvalidInput("decoder", len(parts), f"fuse at most {MOST_PARTS} drafters")
    loop = {entry.name: entry for entry in parameters_of(DraftSettings)}
    methods = [find(name) for name, _ in parts]
    # One setting of the whole must not be given under the names of two parts.
    loops = {
        name: ours for method in methods for name, ours in method.names.items() if ours in loop
    }
    own_names(shared, loops)
    whole: dict[str, Any] = {}
    specs: list[Spec] = []
    understood: set[str] = set()
    running: set[str] = set()
    for method, (name, given) in zip(methods, parts, strict=True):
        names = {entry.name for entry in method.parameters}
        common = {
            key: value for key, value in shared.items() if method.names.get(key, key) in names
        }
        understood |= common.keys()
        own = own_names(common, method.names) | own_names(given, method.names, f"{method.name}.")
        for key in [key for key in own if key in loop]:
            value = loop[key].check(method.name, own.pop(key), trusted)
            if whole.setdefault(key, value) != value:
                raise InvalidInput(key, value, "give a setting of the whole once")
        spec = configured(method, own, trusted)
        needs = _drafter(spec).needs
        if not needs.fuses:
            raise InvalidInput("decoder", name, "this method cannot be fused: use it alone")
        for model in needs.runs:
            if model in running:
                fix = f"only one part may draft with the {model} model"
                raise InvalidInput("decoder", name, fix)
            running.add(model)
        specs.append(spec)
    if not shared.keys() <= understood:
        unknown = sorted(shared.keys() - understood)[0]
        raise InvalidInput("fusion setting", unknown, "use a setting of one of the parts")

    title = "+".join(method.name for method in methods)

    def build(**settings: Any) -> Decoder:
        return assemble(title, Fused([_drafter(spec) for spec in specs]), settings)

    untrained = all(method.training == "none" for method in methods)
    made = Spec(
        Method(
            name=title,
            family="autoregressive",
            guarantee=weakest(*(method.guarantee for method in methods)),
            training="none" if untrained else "the parts'",
            paper="; ".join(method.paper for method in methods),
            summary="One draft made of the parts' drafts.",
            parameters=tuple(loop.values()),
            names={},
            build=build,
            models=tuple(dict.fromkeys(model for spec in specs for model in spec.method.models)),
            under=guarantee_under,
        ),
        whole,
        draft_model=next((spec.draft_model for spec in specs if spec.draft_model), None),
        parts=tuple(specs),
    )
    made()  # Building the loop checks settings against one another.
    return made


def _drafter(spec: Spec) -> Drafter:
    """Build a new drafter for one part of a fusion, without the loop that would run it."""
    part = registered.find("drafter", spec.method.name)
    if part is None:
        raise InvalidInput("decoder", str(spec), "fuse methods that draft and verify")
    drafter: Drafter = part.build(**spec.settings)
    return drafter
