"""Documents that the default model writes under random schemas are valid."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
from constraint_schemas import random_schema

from paradecode.core.errors import InvalidInput

FURTHER = [
    pytest.param(pair, marks=pytest.mark.wide if pair < 5 else pytest.mark.slow)
    for pair in range(1, 100)
]


@pytest.mark.parametrize("pair", [0, *FURTHER])
def test_outputs_validate(llm, pair):
    """Documents for two schemas are valid: greedy ones, and sampled ones that are drafted."""
    refused = 0
    for seed in (2 * pair, 2 * pair + 1):
        schema = random_schema(random.Random(seed))
        constraint = {"type": "json_schema", "value": schema}
        # The penalty keeps a small model from writing the digits of a number for ever.
        settings = {"max_tokens": 700, "frequency_penalty": 0.7, "constraint": constraint}
        try:
            plain = llm.complete("JSON:", decoder="greedy", **settings)
        except InvalidInput:
            refused += 1
            continue
        drafted = llm.complete("JSON:", temperature=1.2, seed=seed, **settings)
        for output in (plain, drafted):
            assert output.finish_reason == "stop", (schema, output.text)
            jsonschema.validate(
                json.loads(output.text), schema, format_checker=jsonschema.FormatChecker()
            )
    assert refused <= 1


def test_the_random_schemas_are_not_all_constants():
    kinds = [random_schema(random.Random(seed)).get("type") for seed in range(120)]
    assert sum(kind in ("object", "array") for kind in kinds) > 40
