"""The cost of templates is limited; small limits keep the attacks of these tests small."""

from __future__ import annotations

import tracemalloc

import pytest

from paradecode.core.errors import InvalidModel
from paradecode.models import chat, sandbox, template_allowance
from paradecode.models.chat import ChatTemplate

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def small(monkeypatch):
    """Set the limits to 64 Ki in all and 8 Ki for one value."""
    monkeypatch.setattr(template_allowance, "MAX_TOTAL", 1 << 16)
    monkeypatch.setattr(template_allowance, "MAX_VALUE", 1 << 13)


LISTS = (
    "{% set s = 'a' * 8000 %}{% set t = 'a' * 8000 %}{% set a = [s] * 100 %}{% set b = [t] * 100 %}"
)
"""Two lists; each costs 6,400 of the allowance, and its text has 800,000 characters."""


@pytest.mark.parametrize(
    "use",
    [
        "{{ a }}", "{{ a ~ '' }}", "{{ a | string | length }}", "{{ ([a] | join) | length }}",
        "{{ (a | tojson) | length }}", "{{ (a | tojson(indent=1)) | length }}",
        "{{ (a | replace('b', 'c')) | length }}", "{{ (a | e) | length }}", "{{ a | upper }}",
        "{{ (a | safe) | length }}", "{{ raise_exception(a) }}", "{{ strftime_now(a) }}",
        "{{ {'x': a} }}", "{{ (a,) }}", "{{ dict(x=a).values() }}", "{{ dict(x=a).items() }}",
        "{{ a == b }}", "{{ a < b }}", "{{ t + 'b' in a }}", "{{ a is eq(b) }}", "{{ a is lower }}",
        "{{ t is in(a) }}", "{{ a.count(t) }}", "{{ a.index(t + 'b') }}", "{{ a | max }}",
        "{{ (a + b) | sort | length }}", "{{ (a + b) | unique | list | length }}",
        "{{ [a] | map('string') | list | length }}",
        "{{ ([{'x': a}] * 9) | sort(attribute='x') | length }}",
        "{{ a | select('eq', t) | list | length }}", "{{ ''.join([a]) }}",
        "{{ [a] | map('_tilde') | list | length }}", "{{ [a, a] | _tilde | length }}",
        "{% for x in [1, 2] %}{{ loop.changed(a) }}{{ loop.changed(b) }}{% endfor %}",
    ],
)  # fmt: skip
def test_lists_that_share_a_long_text(small, use):
    """Writing, comparing or sorting lists with a long text is refused before their text is made."""
    assert ChatTemplate(LISTS + "{{ a | length }}").render(HI) == "100"
    template = ChatTemplate(LISTS + use)
    with pytest.raises(InvalidModel, match="too much text"):
        template.render(HI)
    tracemalloc.start()  # Only now: the template is compiled at its first use.
    try:
        with pytest.raises(InvalidModel):
            template.render(HI)
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        # A namespace in a list of a namespace: it doubles with every step.
        "{% set ns = namespace(v='a') %}{% for i in range(6) %}{% set m = namespace(v=ns.v) %}"
        "{% set ns.v = [m, m] %}{% endfor %}{{ ns.v }}",
        "{% set ns = namespace() %}{% set ns.v = [ns] %}{{ ns.v }}",
        "{{ {}.fromkeys(range(9), 'a') }}", "{{ dict.fromkeys(range(9), 'a') }}",
        "{{ dict.update(messages[0], x=1) }}", "{{ {}.keys().mapping.copy() }}",
        "{{ '%3000d' is odd }}", "{{ '%3000d' is divisibleby(2) }}",
        "{{ {'a': 1}.keys() - [1] }}",
        # Each character costs a step.
        "{{ ('a' * 8000) | max }}", "{{ ('a' * 8000) | sort(attribute='x') | length }}",
        "{{ ('a' * 8000) | map(attribute='x') | reverse | first }}",
        # Whole numbers of more than 4096 bits.
        "{{ ('f' * 2000) | int(0, 16) // 3 }}", "{{ ('f' * 2000) | int(0, 16) % 3 }}",
        "{{ 0x" + "f" * 2000 + " // 3 }}", "{{ 0x" + "f" * 2000 + " - 3 }}",
        # Python compares every position of the text with the whole needle.
        "{{ ('a' * 600).rfind('ab' + 'a' * 300) }}", "{{ ('a' * 600).rsplit(sep='a' * 300) }}",
        "{{ ('a' * 600).strip('b' * 300) }}", "{{ ('a' * 600) | trim('b' * 300) }}",
        "{{ ('ab' * 300) | list | length }}{{ ('ab' * 300).split('a') | length }}" * 2,
    ],
    ids=lambda source: source[:40],
)  # fmt: skip
def test_other_ways_to_make_much_of_little(small, source):
    with pytest.raises(InvalidModel, match="SecurityError"):
        ChatTemplate(source).render(HI)


GREEDY = [
    "'a' | center(10 ** 9)", "'a'.center(10 ** 9)", "'a'.rjust(10 ** 9)", "'a'.ljust(10 ** 9)",
    "'a'.zfill(10 ** 9)", "('a\t' * 4000).expandtabs(10 ** 6)", "'a' * 10 ** 9", "[1] * 10 ** 9",
    "('a' * 8000).replace('a', 'b' * 8000)", "('a' * 8000) | replace('a', 'b' * 8000)",
    "range(10 ** 9) | list", "range(99999) | join('x' * 4000)", "('x' * 8000).join('y' * 8000)",
    "('a\n' * 4000) | indent('x' * 4000, true)", "('a\n' * 4000) | indent(10 ** 9, true)",
    "('a ' * 4000) | wordwrap(1, wrapstring='x' * 4000)", "[1] | slice(10 ** 9, 0) | list",
    "[1] | batch(10 ** 9, 0) | list", "'a' | truncate(9, end='x' * 10 ** 9)",
    "('a' * 8000) | truncate(1, true, 'x' * 8000)", "[[1] * 99] | tojson(indent=10 ** 9)",
    "[[[[1] * 99] * 9] * 9] | tojson(indent=16)", "lipsum(n=10 ** 6)", "'%s' * 10 ** 9",
    "'%s' | format('a' * 8000) * 9", "'{:{w}}'.format(1, w=10 ** 9)", "10 ** (10 ** 9)",
    "('9' * 4000) | int * 3", "('a' * 8000) | map('upper') | join('x' * 8000)",
    "{'a': 'b' * 8000} | xmlattr ~ 'c' * 8000", "1.5 | round(10 ** 9)",
    "('x' * 8000).translate({120: 'y' * 8000})", "('a' * 8000) | urlize(rel='x' * 8000)",
]  # fmt: skip


@pytest.mark.parametrize("source", GREEDY)
def test_each_result_is_bounded_before_it_is_made(small, source):
    template = ChatTemplate("{{ " + source + " }}")
    for _ in range(2):  # The first time it is compiled.
        tracemalloc.start()
        try:
            with pytest.raises(InvalidModel, match="chat_template"):
                template.render(HI)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "source",
    [
        "{% break %}", "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
        "{% if a %}" * 110 + "{% endif %}" * 110, "{% macro f(x, x) %}{% endmacro %}",
        "{{ dict(a=1, a=2) }}",
    ],
    ids=lambda source: source[:40],
)  # fmt: skip
def test_what_python_refuses_to_compile(source):
    with pytest.raises(InvalidModel, match="chat_template"):
        ChatTemplate(source).render(HI)


def test_a_template_is_short_and_has_few_parts(monkeypatch):
    """A template that is too long or has too many parts is refused.

    The time of Jinja's compiler grows with the square of the number of names.
    """
    assert ChatTemplate(" " * chat.MAX_TEMPLATE).render(HI).isspace()
    with pytest.raises(InvalidModel, match="too long"):
        ChatTemplate(" " * (chat.MAX_TEMPLATE + 1))
    monkeypatch.setattr(sandbox, "MAX_NODES", 100)
    assert ChatTemplate("{% if a %}{% endif %}" * 40).render(HI) == ""
    with pytest.raises(InvalidModel, match="100 parts"):
        ChatTemplate("{% if a %}{% endif %}" * 60).render(HI)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages | map(attribute='role') | sort | join('+') }}", "assistant+system+user"),
        ("{{ messages | selectattr('role', 'in', ['user']) | list | length }}", "1"),
        ("{{ (messages | selectattr('role', 'equalto', 'user') | first).content }}", "Hi"),
        ("{{ 'u' in messages | map('first') }}{{ 4 is even }}{{ 4 is divisibleby(3) }}",
         "FalseTrueFalse"),
        ("{{ messages == messages[:] }}{{ [1] < [2] }}{{ 'a' != 'b' }}", "TrueTrueTrue"),
        ("{{ [1, [2, 'a']] }}{{ {'a': (1,)} }}{{ none }}{{ 1.5 }}",
         "[1, [2, 'a']]{'a': (1,)}None1.5"),
        ("{{ 'abc' | list | reverse | join }}{{ {'b': 1, 'a': 2} | dictsort }}",
         "cba[('a', 2), ('b', 1)]"),
        ("{{ 'role' in messages[0] }}{{ 'x' in messages[0] }}{{ 1 in (1, 2) }}", "TrueFalseTrue"),
        ("{{ '<a>' | e }}{{ ' x ' | trim }}{{ 'xax' | trim('x') }}{{ 'aXb'.rsplit('X') }}",
         "&lt;a&gt;xa['a', 'b']"),
        ("{% for m in messages %}{% set n = namespace(v=[]) %}{{ n.v }}{% endfor %}", "[][][]"),
        ("{{ {'a': [1, {'b': 'é'}]} | tojson(indent=2) }}",
         '{\n  "a": [\n    1,\n    {\n      "b": "é"\n    }\n  ]\n}'),
        ("{{ [false] * 3 }}{{ 'ab' * 2 }}{{ 2 * 'ab' }}{{ 7 - 2 }}{{ 2 ** 3 }}",
         "[False, False, False]abababab58"),
    ],
    ids=lambda each: each[:40],
)  # fmt: skip
def test_what_templates_still_do(source, text):
    messages = [{"role": r, "content": "Hi"} for r in ("system", "user", "assistant")]
    assert ChatTemplate(source).render(messages) == text
