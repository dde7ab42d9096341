"""Fields for constraints on the output: OpenAI's ``response_format``, and two sets of vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.protocol.base import Body, Yes
from paradecode.serve.protocol.schemas import check_strict
from paradecode.serve.wire import ConstraintSpec, ConstraintType

Schema = dict[str, Any]
Grammar = Annotated[str, StringConstraints(min_length=1, max_length=1 << 18)]
Regex = Annotated[str, StringConstraints(min_length=1, max_length=1 << 16)]
Choice = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=1 << 12)]],
    Field(min_length=1, max_length=1 << 10),
]


class NamedSchema(Body):
    """A JSON schema with a name. The output always follows it.

    With ``strict``, the schema is refused if one of its rules cannot be enforced.
    """

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)] = "answer"
    description: Annotated[str, StringConstraints(max_length=1 << 14)] | None = None
    schema_: Schema = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(None, alias="schema", description="Of a `json_object`.")


class StructuredOutputs(Body):
    """vLLM's newer fields, of which one is given.

    ``grammar`` is a grammar in Lark's syntax. ``python`` exists in this project only.
    """

    json_: Schema | None = Field(None, alias="json")
    regex: Regex | None = None
    choice: Choice | None = None
    grammar: Grammar | None = None
    json_object: Yes | None = None
    python: Schema | None = None


class Constrained(Body):
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Regex | None = None
    guided_choice: Choice | None = None
    guided_grammar: Grammar | None = None

    def constraint(self) -> ConstraintSpec | None:
        """Return the request's constraint, or None.

        Raises:
            ApiError: 400 if the request has two constraints.
        """
        own = self.structured_outputs or StructuredOutputs.model_construct()
        structured: dict[ConstraintType, Any] = {
            "json_schema": own.json_, "regex": own.regex, "choice": own.choice,
            "lark": own.grammar, "json_object": own.json_object, "python": own.python,
        }  # fmt: skip
        guided: dict[ConstraintType, Any] = {
            "json_schema": self.guided_json, "regex": self.guided_regex,
            "choice": self.guided_choice, "lark": self.guided_grammar,
        }  # fmt: skip
        found = {
            **self._format(),
            **_named("structured_outputs", structured),
            **_named("guided", guided),
        }
        if len(found) > 1:
            names = " and ".join(sorted(found))
            raise ApiError(400, f"{names}: give one constraint", param=sorted(found)[0])
        return next(iter(found.values()), None)

    def _format(self) -> dict[str, ConstraintSpec]:
        chosen = self.response_format
        if chosen is None or chosen.type == "text":
            return {}
        if chosen.type == "json_object" and chosen.schema_ is not None:
            wanted = ConstraintSpec(type="json_schema", value=chosen.schema_)
            return {"response_format": wanted}
        if chosen.type == "json_object":
            return {"response_format": ConstraintSpec(type="json_object")}
        if chosen.json_schema is None:
            raise wrong("response_format.json_schema", "it is required", "missing")
        if chosen.json_schema.strict:
            check_strict("response_format.json_schema.schema", chosen.json_schema.schema_)
        wanted = ConstraintSpec(type="json_schema", value=chosen.json_schema.schema_)
        return {"response_format": wanted}


def _named(where: str, values: dict[ConstraintType, Any]) -> dict[str, ConstraintSpec]:
    return {
        f"{where}.{kind}": ConstraintSpec(type=kind, value=None if value is True else value)
        for kind, value in values.items()
        if value is not None
    }
