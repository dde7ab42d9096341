"""Groups of options that several commands share.

A command gets a group, and users see its options.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import OptionInfo

from paradecode.core.decoder import DRAFT
from paradecode.core.errors import InvalidInput, reason
from paradecode.core.sampling import SamplingParams
from paradecode.methods.choice import AUTO, DEFAULT_DECODERS, Profile, choose
from paradecode.methods.specs import Spec, parse

if TYPE_CHECKING:
    from paradecode.llm import LLM

LONGEST_FILE = 1 << 20
CONSTRAINT = "constraint.value"
"""Name of the field in errors about a constraint."""
TYPER, SETS = "typer", "sets"


def option(
    default: Any, text: str, names: str = "", sets: str | None = None, **settings: Any
) -> Any:
    """Declare an option of a command or a group: its default, its help, and its names.

    Args:
        sets: name of the field in errors about the option's value; None means the option's own
            name.
        settings: further arguments of ``typer.Option``.
    """
    about = typer.Option(*names.split(), help=text, **settings)
    return field(default=default, metadata={TYPER: about, SETS: sets})


def argument(default: Any, text: str, sets: str | None = None) -> Any:
    """Declare a positional argument that may be left out; for ``sets`` see :func:`option`."""
    return field(default=default, metadata={TYPER: typer.Argument(help=text), SETS: sets})


ModelName = Annotated[
    str | None, typer.Option("--model", "-m", help="Name, .gguf file, folder, or name on the hub.")
]
PerGroup = Annotated[int | None, typer.Option(help="At most so many prompts of each group.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True)
class Loading:
    """Options that choose the model, and where it runs."""

    model: ModelName = None
    backend: str = option("auto", "auto, native or torch.")
    dtype: str = option("auto", "Type of the weights in the backend; auto follows the file.")
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    threads: int | None = option(None, "CPU threads; by default all allowed ones.", "--threads -t")
    draft_threads: int | None = option(
        None,
        "CPU threads of the draft model alone, so that pearl and mirror-sd draft meanwhile; or of "
        "draft heads.",
    )
    draft_device: str | None = option(
        None, "cpu, cuda or cuda:N: where PyTorch runs the draft model and draft heads."
    )
    draft_vocabulary: str | None = option(
        None, "Table of n-grams; the draft model only proposes tokens that are in it."
    )
    ranks: int = option(
        1, "Processes, one a GPU, that share the model (torch).", "--ranks --tensor-parallel-size"
    )
    adapter: str | None = option(None, "Merge this file of `train adapt` into the model.")
    chat_template: str | None = option(
        None, "A file of Jinja, or a name such as rag, in place of the model's chat template."
    )

    def open(self, **settings: Any) -> LLM:
        from paradecode.cli.download import offer_download
        from paradecode.cli.progress import loading_bar
        from paradecode.llm import LLM

        offer_download(self.model)

        with loading_bar() as progress:
            return LLM(self.model, **self.settings(), **settings, progress=progress)

    @contextmanager
    def open_autoregressive(self, command: str, **settings: Any) -> Iterator[LLM]:
        """Open the model for a command that needs an autoregressive one.

        Raises:
            InvalidInput: if the model decodes by diffusion only.
        """
        with self.open(**settings) as llm:
            if "autoregressive" not in llm.families:
                raise InvalidInput("model", llm.model, only_autoregressive(command))
            yield llm

    def settings(self) -> dict[str, Any]:
        """Return all settings except the model's name."""
        return {name: value for name, value in vars(self).items() if name != "model"}


@dataclass(frozen=True)
class Decoding:
    """Options that choose the method, and the second model that some methods need."""

    decoder: str = option(AUTO, "Method, such as 'prompt-lookup(max_ngram=3)'.", "--decoder -d")
    speculative_config: str | None = option(
        None, 'The same as JSON: \'{"method": "prompt-lookup"}\'.', sets="decoder"
    )
    profile: Path | None = option(None, "Use a file that `tune` wrote, not --decoder.")
    draft_model: str | None = option(None, "Use this small draft model, if the method needs one.")

    def spec(self) -> Spec:
        """Return the chosen method, where ``auto`` becomes the default of autoregressive models."""
        chosen = self.choice()
        return parse(DEFAULT_DECODERS["autoregressive"]) if isinstance(chosen, str) else chosen

    def choice(self) -> Spec | str:
        """Return the chosen method, or ``auto``, whose meaning depends on the model."""
        chosen = choose(self.decoder, self.speculative_config, self.profile, flag)
        if isinstance(chosen, Profile):
            return chosen.spec
        assert chosen is not None, "plain decoding is asked for by its name"
        return chosen

    def check_draft_model(self) -> None:
        """Raise InvalidInput for a draft model that the method does not use."""
        method = self.spec().method
        if self.draft_model is not None and DRAFT not in method.models:
            fix = f"{method.name} drafts without one: leave it out, or give --decoder draft-model"
            raise InvalidInput("--draft-model", self.draft_model, fix)


@dataclass(frozen=True)
class SamplingOptions:
    """Options for how tokens are chosen. A command may give other defaults."""

    max_tokens: int = option(256, "Generate at most this many tokens.", "--max-tokens -n")
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.")
    top_p: float = option(1.0, "Sample from the best tokens that together have this probability.")
    top_k: int = option(0, "Sample from this many best tokens; 0 means all tokens.")
    seed: int | None = option(None, "Seed of sampling; the same seed gives the same answer.")

    def params(self) -> dict[str, Any]:
        """Return keyword arguments of `LLM.complete`, which are checked before a model is loaded.

        Raises:
            InvalidInput: if a setting is out of range.
        """
        params = dict(vars(self))
        SamplingParams.from_mapping(params)
        return params


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search, which makes many answers and returns one of them."""

    search: str | None = option(
        None, "Make several answers, return one: best-of(n=4), majority, ffs, a-star, beam."
    )
    scorer: str | None = option(
        None, "What a search prefers by: likelihood(norm=sum), process-reward(path=FILE)."
    )

    def params(self) -> dict[str, str]:
        """Return keyword arguments of `LLM.complete`.

        Raises InvalidInput for a scorer without a search.
        """
        if self.scorer is not None and self.search is None:
            raise InvalidInput("--scorer", self.scorer, "give --search, which uses it")
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Constraining:
    """Options for a constraint on the answer, of which at most one may be given."""

    json_schema: Path | None = option(
        None, "The answer is JSON that this schema (a file) allows.", sets=CONSTRAINT
    )
    regex: str | None = option(None, "The answer matches this expression.", sets=CONSTRAINT)
    grammar: Path | None = option(
        None, "The answer is in the language of this Lark grammar.", sets=CONSTRAINT
    )
    choice: list[str] | None = option(
        None, "The answer is one of these texts; repeat the option.", sets=CONSTRAINT
    )
    python: list[Path] | None = option(
        None, "Attributes in the answer exist in these files; repeat the option.", sets=CONSTRAINT
    )

    def constraint(self) -> dict[str, Any] | None:
        """Return the setting `constraint` of `LLM.complete`, or None.

        Raises:
            InvalidInput: if several constraints are given, or if a file cannot be read.
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
            given = ", ".join(made)
            raise InvalidInput("constraint", given, "give one constraint only")
        return next(({"type": kind, "value": value} for kind, value in made.values()), None)


def only_autoregressive(command: str) -> str:
    """Return the fix for a diffusion model or method that a command does not take."""
    return f"{command} takes autoregressive ones; for diffusion use `bench --suite parallel`"


def flag(name: str) -> str:
    """Return a setting's name as it is written on the command line."""
    return "--" + name.replace("_", "-")


def _spelled(name: str, about: tuple[Any, ...]) -> str:
    """Return the first long name of an option, or the capitalized name of an argument."""
    if not about or not isinstance(about[0], OptionInfo):
        return name.upper()
    # If an annotation has names, Typer keeps the first one where a default would be.
    names = [str(about[0].default), *(about[0].param_decls or ())]
    long = (one.partition("/")[0] for one in names if one.startswith("--"))
    return next(long, flag(name))


def read_text(option: str, path: Path) -> str:
    """Return the text of a small file. Raise InvalidInput if it cannot be read or is too long."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(option, str(path), f"give a readable file ({reason(error)})") from None
    if len(text) > LONGEST_FILE:
        raise InvalidInput(option, str(path), f"give a file of at most {LONGEST_FILE} characters")
    return text


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command for typer, in which each group's options are options of the command.

    If a group parameter has a default, its values are the defaults of the options.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    spelled: dict[str, tuple[str, str]] = {}
    """Option -> name of the field in errors about it, and how users write the option."""
    groups: dict[str, tuple[Any, list[str]]] = {}

    def add(name: str, kind: Any, default: Any) -> None:
        sets = name
        if isinstance(default, Field):
            sets = default.metadata.get(SETS) or name
            kind, default = Annotated[kind, default.metadata[TYPER]], default.default
        spelled[name] = sets, _spelled(name, typing.get_args(kind)[-1:])
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

    for parameter in inspect.signature(command).parameters.values():
        name, kind, given = parameter.name, hints[parameter.name], parameter.default
        if not is_dataclass(kind):
            add(name, kind, given)
            continue
        options = typing.get_type_hints(kind, include_extras=True)
        groups[name] = kind, [each.name for each in fields(kind)]
        for each in fields(kind):
            own = copy(each)
            if given is not inspect.Parameter.empty:
                own.default = getattr(given, each.name)
            assert own.default is not MISSING, f"{kind} {each.name}: options have defaults"
            add(each.name, options[each.name], own if TYPER in each.metadata else own.default)

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        # The library's errors name settings, but users know options. If several options set one
        # setting, the error names the one that was given.
        known = dict(pair for name, pair in spelled.items() if name in pair or values[name])
        for name, (kind, members) in groups.items():
            values[name] = kind(**{member: values.pop(member) for member in members})
        try:
            command(**values)
        except InvalidInput as error:
            if error.field not in known:
                raise
            # What a worker of the server says is the fix, and begins with a setting's name.
            inner, colon, said = error.fix.partition(": ")
            fix = f"{known[inner]}{colon}{said}" if inner in known else error.fix
            raise type(error)(known[error.field], error.value, fix) from error

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat
