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
from paradecode.methods.choice import AUTO, DEFAULT_DECODERS, choose
from paradecode.methods.profile import Profile
from paradecode.methods.registry import Spec, parse

if TYPE_CHECKING:
    from paradecode.llm import LLM

LONGEST_FILE = 1 << 20

ModelName = Annotated[
    str | None, typer.Option("--model", "-m", help="Name, .gguf file, folder, or hub name.")
]
PerGroup = Annotated[int | None, typer.Option(min=1, help="Only so many prompts of each group.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Loading:
    """Which model runs where."""

    model: ModelName = None
    backend: Annotated[str, typer.Option(help="auto, native or torch.")] = "auto"
    dtype: Annotated[str, typer.Option(help="Weights in the backend; auto follows the file.")] = (
        "auto"
    )
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu"
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: what is allowed.")] = (
        None
    )
    ranks: Annotated[
        int,
        typer.Option("--ranks", "--tensor-parallel-size",
                     help="Processes, one a GPU, that divide the model (torch)."),
    ] = 1  # fmt: skip
    adapter: Annotated[
        str | None, typer.Option(help="A file of `train adapt`, merged into the model.")
    ] = None

    def open(self, **settings: Any) -> LLM:
        from paradecode.llm import LLM

        return LLM(
            self.model, backend=self.backend, dtype=self.dtype,
            device=self.device, threads=self.threads, ranks=self.ranks, adapter=self.adapter,
            **settings,
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
        return parse(DEFAULT_DECODERS["autoregressive"]) if isinstance(chosen, str) else chosen

    def choice(self) -> Spec | str:
        """The method, or ``auto``: what suits the model."""
        chosen = choose(self.decoder, self.speculative_config, self.profile, _flag)
        if isinstance(chosen, Profile):
            return chosen.spec
        assert chosen is not None, "plain decoding is asked for by its name"
        return chosen


@dataclass(frozen=True)
class SamplingOptions:
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


@dataclass(frozen=True)
class Constraining:
    """What the answer must be; at most one of them."""

    json_schema: Annotated[
        Path | None, typer.Option(help="The answer is JSON that this schema (a file) allows.")
    ] = None
    regex: Annotated[str | None, typer.Option(help="The answer matches this expression.")] = None
    grammar: Annotated[
        Path | None, typer.Option(help="The answer is in the language of this Lark grammar.")
    ] = None
    choice: Annotated[
        list[str] | None, typer.Option(help="The answer is one of these texts; repeat the option.")
    ] = None
    python: Annotated[
        list[Path] | None,
        typer.Option(help="Attributes in the answer exist in these files; repeat the option."),
    ] = None

    def constraint(self) -> dict[str, Any] | None:
        """The setting `constraint` of `LLM.generate`, or None.

        Raises:
            InvalidInput: several were given, or a file cannot be read.
        """
        made: dict[str, tuple[str, Any]] = {}
        if self.json_schema is not None:
            made["--json-schema"] = "json_schema", read_text("--json-schema", self.json_schema)
        if self.regex is not None:
            made["--regex"] = "regex", self.regex
        if self.grammar is not None:
            made["--grammar"] = "lark", read_text("--grammar", self.grammar)
        if self.choice:
            made["--choice"] = "choice", self.choice
        if self.python:
            files = {path.as_posix(): read_text("--python", path) for path in self.python}
            made["--python"] = "python", {"files": files}
        if len(made) > 1:
            first, second = list(made)[:2]
            raise InvalidInput(second, first, "give one constraint only")
        return next(({"type": kind, "value": value} for kind, value in made.values()), None)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_text(option: str, path: Path) -> str:
    """A small file's text."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(option, str(path), f"the file cannot be read: {error}") from None
    if len(text) > LONGEST_FILE:
        raise InvalidInput(option, str(path), f"give a file of at most {LONGEST_FILE} characters")
    return text


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
