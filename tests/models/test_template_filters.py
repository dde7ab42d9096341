"""Jinja's filters, methods and globals give the same results here as in transformers."""

from __future__ import annotations

import pytest

from paradecode.models.chat import ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is <b>copper</b>, or tin?  It's\ta metal."},
    {"role": "assistant", "content": "No"},
]
SNIPPETS = [
    "{{ '%s is %d' % ('a', 3) }}", "{{ '%05.1f|%-4s|%+d|%x|%%' % (3.14159, 'x', 3, 255) }}",
    "{{ '%o|%e|%c|%r|%#x|% d' % (8, 1.5, 65, 'q', 255, 7) }}",
    "{{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }}", "{{ '%*d|%.*f' % (5, 1, 2, 3.14159) }}",
    "{{ '%s' % none }}", "{{ '%s' % [1] }}", "{{ 'a' % {'b': 1} }}", "{{ '%s' % messages[0] }}",
    "{{ '{0} {1} {a!r:>6}'.format('x', [1], a='b') }}",
    "{{ '{:>8}|{:<4}|{:^5}|{:,}|{:.2%}'.format('a', 'b', 'c', 12345, 0.25) }}",
    "{{ '{x[content]}'.format(x=messages[2]) }}", "{{ '{a}'.format_map({'a': 1}) }}",
    "{{ '%s-%s' | format('a', 1) }}", "{{ '%(x)s' | format(x=3) }}",
    "{{ 'ab'.center(7, '*') }}{{ 'ab'.ljust(4) }}|{{ 'ab'.rjust(4, '-') }}{{ '7'.zfill(3) }}",
    "{{ 'ab' | center(8) }}|", "{{ 'a\tb'.expandtabs(4) }}", "{{ 'aBc'.swapcase() }}",
    "{{ 'STRASSE ß'.casefold() }}", "{{ 'ab'.translate({97: 'x', 98: none}) }}",
    "{{ 'ab'.translate('ab'.maketrans('a', 'c')) }}", "{{ 'é'.encode('utf-8').decode('utf-8') }}",
    "{% for m in ['isnumeric', 'isdecimal', 'isidentifier', 'isprintable', 'istitle'] %}"
    "{{ '12' | attr(m) is callable }}{% endfor %}",
    "{{ '12'.isnumeric() }}{{ '1²'.isdecimal() }}{{ 'a1'.isidentifier() }}{{ 'Ab'.istitle() }}",
    "{{ 3.14159 | round(2) }}{{ 3.2 | round(method='ceil') }}{{ 25 | round(-1, 'floor') }}",
    "{{ [1, 2, 3] | sum }}{{ [[1], [2]] | sum(start=[]) }}",
    "{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}",
    "{{ messages[1].content | wordcount }}", "{{ messages[1].content | truncate(15) }}",
    "{{ messages[1].content | truncate(15, true, '…') }}", "{{ messages[1].content | striptags }}",
    "{{ messages[1].content | wordwrap(12) }}", "{{ 'a b/ü' | urlencode }}",
    "{{ {'a': 1, 'b': 'x y'} | urlencode }}", "{{ 'see http://x.y' | urlize }}",
    "{{ {'a': 1, 'b': none} | xmlattr }}", "{{ '<a>' | forceescape }}{{ 2048 | filesizeformat }}",
    "{{ [1, 2, 3, 4, 5] | batch(2, 'x') | list }}", "{{ [1, 2, 3, 4, 5] | slice(2, 0) | list }}",
    "{% for role, those in messages | groupby('role') %}{{ role }}{{ those | length }}{% endfor %}",
    "{{ messages | pprint }}", "{{ [3] | random }}", "{{ 'x' | attr('upper') is callable }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{% set j = joiner('|') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}",
    "{{ (5).bit_length() }}{{ (2.0).is_integer() }}",
    "{% filter upper %}a{{ 1 }}{% endfilter %}",
    "{{ messages | map(attribute='content') | map('truncate', 5) | join('|') }}",
    "{{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }}",
    "{{ [1, [2]] | string | length }}{{ 'a,b' | replace(',', ';', 1) }}{{ '-5' | int | abs }}",
    "{{ 'abc' | first }}{{ 'abc' | last }}{{ [3, 1] | min }}{{ ['b', 'A'] | sort }}",
    "{{ 'one two'.title() }}{{ 'x' in 'xyz' }}{{ none | default('d', true) }}",
]  # fmt: skip


@pytest.mark.first(2)
@pytest.mark.parametrize("source", SNIPPETS, ids=lambda source: source[:40])
def test_a_snippet_writes_what_it_writes_in_transformers(source):
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import _compile_jinja_template

    expected = _compile_jinja_template(source).render(messages=MESSAGES)
    assert ChatTemplate(source).render(MESSAGES) == expected
