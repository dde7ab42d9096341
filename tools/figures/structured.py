"""Tokens per forward under JSON schemas: plain constrained decoding, forced tokens, and lookup.

    python -m tools.figures.structured [--max-tokens 160] [--out bench/results/structured.json]

Counts forwards, so that the machine's load does not matter. Every method's tokens are compared with
the plain ones, and every document is validated.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from paradecode import LLM
from tools.script import options, save, stamped

METHODS = {
    "plain": "greedy",
    "forced tokens": "prompt-lookup(min_ngram=32,max_ngram=32,budget=fixed)",  # Finds nothing.
    "forced + lookup": "prompt-lookup(budget=fixed)",
    "forced + lookup, 16 a draft": "prompt-lookup(budget=fixed,num_speculative_tokens=16)",
}

Schema = dict[str, Any]


def text(most: int = 40) -> Schema:
    return {"type": "string", "maxLength": most}


def whole(low: int = 0, high: int = 100_000) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def record(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def several(items: Schema, most: int = 4) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


TASKS: list[tuple[str, Schema]] = [
    (
        "Maria Lopez, 34, lives in Valencia and works as a nurse.",
        record(full_name=text(), age=whole(0, 120), city=text(), occupation=text()),
    ),
    (
        "Order 4417: two boxes of green tea and one kettle, to be sent to Oslo, paid by card.",
        record(
            order_number=whole(),
            items=several(record(product_name=text(), quantity=whole(1, 99))),
            destination=text(),
            payment_method=one_of("card", "cash", "transfer"),
        ),
    ),
    (
        "The meeting about the bridge repair is on 12 May at 14:30 in room B7; Ken and Ada attend.",
        record(
            subject=text(),
            date=text(12),
            time={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
            room=text(8),
            participants=several(text(12)),
        ),
    ),
    (
        "The patient has a temperature of 38.4 degrees, a cough, and no allergies.",
        record(
            temperature_celsius={"type": "string", "pattern": "^[0-9]{2}\\.[0-9]$"},
            symptoms=several(text(20)),
            has_allergies={"type": "boolean"},
        ),
    ),
    (
        "Flight KL1023 leaves Amsterdam at 09:15 and arrives in London at 09:40.",
        record(
            flight_number=text(8),
            departure=record(airport=text(20), time=text(6)),
            arrival=record(airport=text(20), time=text(6)),
        ),
    ),
    (
        "This phone is wonderful: the camera is sharp, but the battery is weak.",
        record(
            sentiment=one_of("positive", "negative", "mixed"),
            strengths=several(text(20), 2),
            weaknesses=several(text(20), 2),
        ),
    ),
    (
        "Turn the lights in the kitchen down to 30 percent.",
        record(
            tool=one_of("set_lights", "set_heating", "play_music"),
            arguments=record(room=text(15), brightness_percent=whole(0, 100)),
        ),
    ),
    (
        "The recipe takes 200 grams of flour, 3 eggs and 50 grams of butter. Bake for 25 minutes.",
        record(
            ingredients=several(
                record(name=text(15), amount=whole(0, 999), unit=one_of("g", "piece"))
            ),
            baking_minutes=whole(0, 240),
        ),
    ),
    (
        "Server web-3 in zone eu-west reports 91 percent CPU and 40 percent memory.",
        record(
            host_name=text(12),
            zone=text(12),
            cpu_percent=whole(0, 100),
            memory_percent=whole(0, 100),
            status=one_of("ok", "warning", "critical"),
        ),
    ),
    (
        "The book Dune by Frank Herbert was published in 1965 and has 412 pages.",
        record(title=text(), author=text(), year=whole(1400, 2100), number_of_pages=whole(1, 5000)),
    ),
    (
        "The team played at home and won 3 to 1 against Leeds.",
        record(
            opponent=text(20),
            goals_scored=whole(0, 20),
            goals_conceded=whole(0, 20),
            venue=one_of("home", "away"),
            result=one_of("won", "drawn", "lost"),
        ),
    ),
    (
        "Invoice 88 of Acme Ltd: 3 chairs at 40 euros and 1 desk at 200 euros.",
        record(
            invoice_number=whole(),
            supplier=text(),
            currency=one_of("EUR", "USD", "GBP"),
            lines=several(record(description=text(15), quantity=whole(1, 99), unit_price=whole())),
        ),
    ),
    (
        "Delete the file report.txt in the folder archive, and do not ask.",
        record(
            command=one_of("create", "copy", "delete"),
            path=record(folder=text(20), file=text(20)),
            ask_for_confirmation={"type": "boolean"},
        ),
    ),
    (
        "The flat has 3 rooms, 72 square metres, a balcony, and costs 1100 a month.",
        record(
            number_of_rooms=whole(1, 20),
            area_square_metres=whole(1, 999),
            has_balcony={"type": "boolean"},
            monthly_rent=whole(),
        ),
    ),
    (
        "Tomorrow in Bergen: rain, 11 degrees, wind from the west. In Rome: sun, 27 degrees.",
        record(
            forecasts=several(
                record(
                    city=text(15),
                    weather=one_of("sun", "rain", "snow", "clouds"),
                    temperature_celsius=whole(-50, 60),
                ),
                2,
            )
        ),
    ),
    (
        "The user ana@example.com asked on Monday for a refund of 25 dollars.",
        record(
            email=text(30),
            weekday=one_of("Monday", "Tuesday", "Friday"),
            request=text(20),
            amount=whole(0, 999),
        ),
    ),
    (
        "Copper has the symbol Cu and the atomic number 29; zinc has Zn and 30.",
        record(
            elements=several(record(name=text(12), symbol=text(2), atomic_number=whole(1, 118)), 2)
        ),
    ),
    (
        "The bus of line 14 stops at Park Street, City Hall and North Station.",
        record(
            line_number=whole(1, 999),
            vehicle=one_of("bus", "tram", "ferry"),
            stops=several(text(20), 3),
        ),
    ),
    (
        "Set a timer of 12 minutes called pasta and one of 5 minutes called tea.",
        record(timers=several(record(label=text(12), duration_minutes=whole(1, 600)), 2)),
    ),
    (
        "Function add takes two integers a and b and returns their sum.",
        record(
            function_name=text(12),
            parameters=several(record(name=text(8), type=one_of("int", "str")), 2),
            returns=record(type=one_of("int", "str", "none"), description=text(30)),
        ),
    ),
]


def measure(llm: LLM, max_tokens: int) -> dict[str, Any]:
    """Sums over all tasks."""
    totals: dict[str, Any] = {name: {"forwards": 0, "tokens": 0, "equal": 0} for name in METHODS}
    valid = 0
    for number, (source, schema) in enumerate(TASKS):
        message = f"Extract as JSON.\n{source}"
        plain: list[int] = []
        for name, decoder in METHODS.items():
            answer = llm.chat(
                [{"role": "user", "content": message}], max_tokens=max_tokens, decoder=decoder,
                constraint={"type": "json_schema", "value": schema},
            )  # fmt: skip
            if name == "plain":
                plain = answer.token_ids
                jsonschema.validate(json.loads(answer.text), schema)
                valid += 1
            total = totals[name]
            total["forwards"] += answer.stats.forwards
            total["tokens"] += len(answer.token_ids)
            total["equal"] += answer.token_ids == plain
        print(f"{number + 1}/{len(TASKS)}", file=sys.stderr)
    for total in totals.values():
        total["tokens_per_forward"] = round(total["tokens"] / total["forwards"], 3)
    return {"tasks": len(TASKS), "valid": valid, "methods": totals}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--max-tokens", type=int, default=160)
    given = parser.parse_args()
    with LLM() as llm:
        result = measure(llm, given.max_tokens)
        head = stamped(model=llm.model, backend=llm.backend.name, max_tokens=given.max_tokens)
    print(f"{result['valid']} of {result['tasks']} documents are valid")
    for name, total in result["methods"].items():
        print(
            f"{name:30} {total['tokens_per_forward']:5.2f} tokens a forward, "
            f"{total['forwards']:5} forwards, {total['equal']} outputs equal the plain ones"
        )
    save({**head, **result}, given.out)


if __name__ == "__main__":
    main()
