"""Groups of options that several commands share: commands see a group, users see its options."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.decoders.profile import Profile
from paradecode.decoders.registry import Spec, parse

if TYPE_CHECKING:
    from paradecode.llm import LLM

DEFAULT_DECODER = "prompt-lookup"
AUTO = "auto"

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Loading:
    """Which model runs where."""

    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Name, .gguf file, folder, or hub name.")
    ] = None
    backend: Annotated[str, typer.Option(help="auto, native or torch.")] = "auto"
    dtype: Annotated[str, typer.Option(help="Weights in the backend; auto follows the file.")] = (
        "auto"
    )
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu"
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: what is allowed.")] = (
        None
    )

    def open(self, **settings: Any) -> LLM:
        from paradecode.llm import LLM

        return LLM(
            self.model, backend=self.backend, dtype=self.dtype,
            device=self.device, threads=self.threads, **settings,
        )  # fmt: skip


@dataclass(frozen=True)
class Decoding:
    """The method, and the second model that some methods need."""

    decoder: Annotated[
        str, typer.Option("--decoder", "-d", help="Method, e.g. 'prompt-lookup(max_ngram=3)'.")
    ] = AUTO
    speculative_config: Annotated[
        str | None, typer.Option(help='The same as JSON: \'{"method": "prompt-lookup"}\'.')
    ] = None
    profile: Annotated[
        Path | None, typer.Option(help="What `tune` wrote, in place of a method.")
    ] = None
    draft_model: Annotated[
        str | None, typer.Option(help="The small model of methods that need one.")
    ] = None

    def spec(self) -> Spec:
        """The method; ``auto`` is that of an autoregressive model."""
        chosen = self.choice()
        return chosen if isinstance(chosen, Spec) else parse(DEFAULT_DECODER)

    def choice(self) -> Spec | str:
        """The method, or ``auto``: what suits the model."""
        if self.profile is not None:
            if self.decoder != AUTO or self.speculative_config is not None:
                fix = "leave --decoder and --speculative-config out"
                raise InvalidInput("--profile", str(self.profile), fix)
            return Profile.load(self.profile).spec
        if self.speculative_config is None:
            return AUTO if self.decoder == AUTO else parse(self.decoder)
        if self.decoder != AUTO:
            raise InvalidInput(
                "--speculative-config", self.speculative_config, "leave --decoder out"
            )
        return parse(self.speculative_config)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; a command gives its own defaults."""

    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Nucleus mass.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Keep the k best tokens; 0 keeps all.")] = 0
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None

    def params(self) -> dict[str, Any]:
        """Keywords of `LLM.generate`, checked before a model is loaded.

        Raises:
            InvalidInput: a setting out of range.
        """
        params = dict(vars(self))
        SamplingParams.from_mapping(params)
        return params


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is an option group by the options of the group.

    A parameter's default, a group with other values, gives the options' defaults.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind))
            continue
        options = typing.get_type_hints(kind, include_extras=True)
        given = None if parameter.default is inspect.Parameter.empty else parameter.default
        groups[parameter.name] = kind, [field.name for field in fields(kind)]
        for field in fields(kind):
            default = field.default if given is None else getattr(given, field.name)
            assert default is not MISSING, f"{kind} {field.name}: an option group has defaults"
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=options[field.name],
                )
            )

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for name, (kind, members) in groups.items():
            values[name] = kind(**{member: values.pop(member) for member in members})
        command(**values)

    flat.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat
