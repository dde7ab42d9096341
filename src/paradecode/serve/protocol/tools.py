"""Functions that the model may call: how they are shown to it, and how a call is enforced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, StringConstraints, Tag, model_validator

from paradecode.core.errors import InvalidInput
from paradecode.serve import strict_json
from paradecode.serve.protocol.base import FOREIGN, Body, Foreign, kinds
from paradecode.serve.protocol.fields import Name
from paradecode.serve.protocol.schemas import check_strict, moved

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
Arguments = Annotated[str, StringConstraints(max_length=1 << 20)]
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
CUSTOM_PARAMETERS = {"type": "object", "required": ["input"], "additionalProperties": False}
CALL = {"type": "object", "required": ["name", "arguments"], "additionalProperties": False}

INSTRUCTIONS = (
    "You can call these functions:\n{functions}\n"
    'To call one, answer with only this JSON object: {{"name": "its name", "arguments": {{...}}}}'
)


class Function(Body):
    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=1 << 18)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A function, or a custom tool that the model sees as a function with one text."""

    type: Literal["function"] = "function"
    function: Function
    _custom: bool = PrivateAttr(False)


class InputGrammar(Body):
    """The form of a custom tool's input. A forced call follows a regular expression.

    A call's arguments are JSON, in which a text has escapes. So a grammar of Lark, which knows
    nothing of them, is only shown to the model.
    """

    definition: Annotated[str, StringConstraints(max_length=1 << 18)]
    syntax: Literal["lark", "regex"]

    @property
    def dropped(self) -> tuple[str, ...]:
        return ("lark",) if self.syntax == "lark" else ()


class InputFormat(Body):
    type: Literal["text", "grammar"] = "text"
    grammar: InputGrammar | None = None


class Custom(Body):
    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=1 << 18)] | None = None
    format: InputFormat | None = None


class CustomTool(Body):
    """A tool that is called with any text."""

    type: Literal["custom"]
    custom: Custom

    def as_function(self) -> Tool:
        """Return the function by which the model calls the tool."""
        told, grammar = (
            self.custom.description or "",
            self.custom.format and self.custom.format.grammar,
        )
        text: dict[str, Any] = {"type": "string"}
        if grammar and grammar.syntax == "regex":
            text["pattern"] = f"^(?:{grammar.definition})$"
        if grammar:
            told += f"\nThe input follows this {grammar.syntax} grammar:\n{grammar.definition}"
        parameters = {**CUSTOM_PARAMETERS, "properties": {"input": text}}
        function = Function(name=self.custom.name, description=told, parameters=parameters)
        made = Tool(function=function)
        made._custom = True
        return made


class ForeignTool(Foreign):
    """A tool of another kind. The model does not see it."""


AnyTool = Annotated[
    Annotated[Tool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[ForeignTool, Tag(FOREIGN)],
    kinds("function", "custom", default="function"),
]
MAX_TOOLS = 1 << 10


class FunctionChoice(Body):
    name: FunctionName


class ToolChoice(Body):
    type: Literal["function"]
    function: FunctionChoice

    @property
    def name(self) -> str:
        return self.function.name


class CustomChoice(Body):
    type: Literal["custom"]
    custom: FunctionChoice

    @property
    def name(self) -> str:
        return self.custom.name


class AllowedTool(Body):
    type: Literal["function", "custom"] = "function"
    name: FunctionName | None = None
    function: FunctionChoice | None = None
    custom: FunctionChoice | None = None


class ForeignAllowed(Foreign):
    """An allowed tool that cannot be called here."""


class Allowed(Body):
    """The tools that may be called. The mode ``required`` forces a call of one of them."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[
        Annotated[
            Annotated[AllowedTool, Tag("function")] | Annotated[ForeignAllowed, Tag(FOREIGN)],
            kinds("function", default="function", others={"custom": "function"}),
        ]
    ] = Field(default_factory=list, max_length=MAX_TOOLS)

    @property
    def names(self) -> set[str]:
        named = [tool for tool in self.tools if isinstance(tool, AllowedTool)]
        inner = [(tool.function or tool.custom, tool.name or "") for tool in named]
        return {choice.name if choice else name for choice, name in inner}


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: Allowed


class ForeignChoice(Foreign):
    """The choice of a tool that cannot be called here. The model then chooses freely."""


AnyChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[ToolChoice, Tag("function")]
        | Annotated[CustomChoice, Tag("custom")]
        | Annotated[AllowedChoice, Tag("allowed_tools")]
        | Annotated[ForeignChoice, Tag(FOREIGN)],
        kinds("function", "custom", "allowed_tools"),
    ]
)


class CalledFunction(Body):
    name: FunctionName
    arguments: Arguments
    _given: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Parse the arguments while the body is parsed, in a thread if the body is long."""
        self._given = self.arguments
        with suppress(InvalidInput):  # Invalid JSON of a model stays a text.
            self._given = strict_json.read(self.arguments.encode())


class ToolCall(Body):
    """A call that the model made in an earlier answer.

    The input of a custom tool becomes one argument of a function.
    """

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, given: Any) -> Any:
        custom = given.get("custom") if isinstance(given, dict) else None
        if not isinstance(custom, dict) or given.get("type") != "custom":
            return given
        written = {"name": custom.get("name"), "arguments": custom_arguments(custom.get("input"))}
        rest = {name: value for name, value in given.items() if name != "custom"}
        return {**rest, "type": "function", "function": written}


def custom_arguments(written: Any) -> str:
    """Return the input of a custom tool, which may be any text, as the arguments of a function."""
    return json.dumps({"input": written}, ensure_ascii=False)


def offered(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the tools in the form for a model's own template."""
    functions = [
        {
            "name": tool.function.name,
            "description": tool.function.description or "",
            "parameters": tool.function.parameters or NO_PARAMETERS,
        }
        for tool in tools
    ]
    return [{"type": "function", "function": function} for function in functions]


def instructions(tools: Sequence[Tool]) -> str:
    """Return a system message that shows the tools, for a template that does not show them."""
    functions = "\n".join(
        json.dumps(tool["function"], ensure_ascii=False) for tool in offered(tools)
    )
    return INSTRUCTIONS.format(functions=functions)


def call_schema(tools: Sequence[Tool], answer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON schema of a call: an object of ``name`` and ``arguments``.

    Args:
        answer: the schema of an answer that may come instead of a call.

    The schema of each tool is placed below ``$defs``, and its references are adapted.

    Raises:
        ApiError: 400 if a strict function's schema cannot be enforced.
    """
    calls: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for index, tool in enumerate(tools):
        place = f"#/$defs/tool_{index}"
        parameters = tool.function.parameters or NO_PARAMETERS
        if tool.function.strict:
            check_strict(f"tools[{index}].function.parameters", parameters)
        definitions[f"tool_{index}"] = moved(parameters, place)
        properties = {"name": {"const": tool.function.name}, "arguments": {"$ref": place}}
        calls.append({**CALL, "properties": properties})
    if answer is not None:
        definitions["answer"] = moved(answer, "#/$defs/answer")
        calls.append({"$ref": "#/$defs/answer"})
    return {"anyOf": calls, "$defs": definitions}


def for_template(call: ToolCall) -> dict[str, Any]:
    """Return an earlier call in the form for templates, with its arguments parsed if possible."""
    function = {"name": call.function.name, "arguments": call.function._given}
    return {"id": call.id, "type": "function", "function": function}


def as_text(calls: Sequence[ToolCall]) -> str:
    """Return earlier calls as text, in the form that :func:`instructions` asks for."""
    functions = [for_template(call)["function"] for call in calls]
    return "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
