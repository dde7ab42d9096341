"""Functions that the model may call: how the model sees them, and how a call is enforced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, StringConstraints

from paradecode.core.errors import InvalidInput
from paradecode.serve import strict_json
from paradecode.serve.protocol.base import Body
from paradecode.serve.protocol.fields import Name
from paradecode.serve.protocol.schemas import check_strict, moved

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Arguments = Annotated[str, StringConstraints(max_length=1 << 20)]
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
CALL = {"type": "object", "required": ["name", "arguments"], "additionalProperties": False}

INSTRUCTIONS = (
    "You can call these functions:\n{functions}\n"
    'To call one, answer with only this JSON object: {{"name": "its name", "arguments": {{...}}}}'
)


class Function(Body):
    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=1 << 14)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionChoice(Body):
    name: FunctionName


class ToolChoice(Body):
    type: Literal["function"]
    function: FunctionChoice


class CalledFunction(Body):
    name: FunctionName
    arguments: Arguments
    _given: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Parse the arguments together with the body, which happens in a thread if it is long."""
        self._given = self.arguments
        with suppress(InvalidInput):  # A model may have written anything: then it stays a text.
            self._given = strict_json.read(self.arguments.encode())


class ToolCall(Body):
    """A call that an earlier answer made."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None


def offered(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools in the form of a model's own template."""
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
    """The tools as a system message, for a model whose template does not show tools."""
    functions = "\n".join(
        json.dumps(tool["function"], ensure_ascii=False) for tool in offered(tools)
    )
    return INSTRUCTIONS.format(functions=functions)


def call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The JSON schema of one call of one of the tools: an object of ``name`` and ``arguments``.

    Each tool's schema moves below ``$defs``, and its references follow.

    Raises:
        ApiError: 400 for a strict function whose schema cannot be enforced.
    """
    calls, definitions = [], {}
    for index, tool in enumerate(tools):
        place = f"#/$defs/tool_{index}"
        parameters = tool.function.parameters or NO_PARAMETERS
        if tool.function.strict:
            check_strict(f"tools[{index}].function.parameters", parameters)
        definitions[f"tool_{index}"] = moved(parameters, place)
        properties = {"name": {"const": tool.function.name}, "arguments": {"$ref": place}}
        calls.append({**CALL, "properties": properties})
    return {"anyOf": calls, "$defs": definitions}


def for_template(call: ToolCall) -> dict[str, Any]:
    """An earlier call in the form of templates, with its arguments as an object, if they are
    one."""
    function = {"name": call.function.name, "arguments": call.function._given}
    return {"id": call.id, "type": "function", "function": function}


def as_text(calls: Sequence[ToolCall]) -> str:
    """Earlier calls in the form that :func:`instructions` asks for."""
    functions = [for_template(call)["function"] for call in calls]
    return "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
