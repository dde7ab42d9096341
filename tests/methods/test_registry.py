import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paradecode
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.loop import DraftVerify
from paradecode.methods.draft.plain import Plain
from paradecode.methods.parts import TABLE, known
from paradecode.methods.spec_text import MAX_SPEC
from paradecode.methods.specs import Spec, find, methods, parse
from paradecode.search.strategies import strategies

known("method"), strategies()  # They fill the table.
PARTS = [
    part
    for kind in sorted(TABLE)
    for part in known(kind).values()
    if part.parameters and part.build.__module__.startswith("paradecode.")
]


@pytest.mark.parametrize(
    "spec", [None, "", "none", "greedy", "plain", "sample", " Greedy ", "greedy()"]
)
def test_plain_decoding(spec):
    assert parse(spec).method.name == "greedy"
    assert isinstance(parse(spec)(), Plain)


@pytest.mark.parametrize("spec", [
    "prompt-lookup(max_ngram=5,num_speculative_tokens=3)",
    " prompt-lookup( max_ngram = 5 , num_speculative_tokens = 3 , ) ",
    '{"method": "prompt-lookup", "max_ngram": 5, "num_speculative_tokens": 3}',
    {"method": "prompt-lookup", "max_ngram": 5, "num_speculative_tokens": 3},
    # vLLM's words.
    {"method": "ngram", "prompt_lookup_max": 5, "num_speculative_tokens": 3},
    '{"method": "ngram", "prompt_lookup_max": 5, "num_speculative_tokens": 3}',
    # transformers' words.
    "pld(max_matching_ngram_size=5, prompt_lookup_num_tokens=3)",
    "PROMPT_LOOKUP(max_ngram=5, num_speculative_tokens=3)",
], ids=str)  # fmt: skip
def test_spellings_of_one_method(spec):
    read = parse(spec)
    assert read.method.name == "prompt-lookup"
    assert read.settings == {"max_ngram": 5, "num_speculative_tokens": 3}
    assert parse(str(read)) == read
    assert parse(read) is read


def test_values():
    assert parse("prompt-lookup(verifier=coupled)").settings == {"verifier": "coupled"}
    assert parse("prompt-lookup(verifier='coupled')").settings == {"verifier": "coupled"}
    assert parse("prompt-lookup(max_ngram=0x10)").settings == {"max_ngram": 16}


@pytest.mark.parametrize("name", ["ngram", "prompt_lookup", "pld", "ngram-simple", "NGRAM_simple"])
def test_aliases(name):
    assert find(name).name == "prompt-lookup"


def test_mapping_is_left_alone():
    given = {"method": "pld", "max_ngram": 4}
    parse(given)
    assert given == {"method": "pld", "max_ngram": 4}


def test_a_spec_builds_a_fresh_decoder_each_time():
    spec = parse("prompt-lookup(max_ngram=7, num_speculative_tokens=2)")
    one, two = spec(), spec()
    assert isinstance(one, DraftVerify)
    assert isinstance(two, DraftVerify)
    assert one is not two
    assert one.drafter is not two.drafter
    assert (one.drafter.max_ngram, one.drafter.min_ngram, one.budget.count) == (7, 1, 2)


@pytest.mark.parametrize(("name", "near"), [("promt-lookup", "prompt-lookup"), ("gredy", "greedy")])
def test_unknown_names_suggest_near_ones(name, near):
    with pytest.raises(InvalidInput, match=name) as caught:
        parse(name)
    assert near in caught.value.fix


def test_a_hopeless_name_points_to_the_list():
    for spec in ("zzzzzzzzzz", {"method": 3}):
        with pytest.raises(InvalidInput) as caught:
            parse(spec)
        assert "paradecode methods" in caught.value.fix


def test_unknown_setting_names_itself_and_the_known_ones():
    with pytest.raises(InvalidInput, match="max_ngrams") as caught:
        parse("prompt-lookup(max_ngrams=3)")
    assert caught.value.fix.startswith("did you mean max_ngram or min_ngram?")
    with pytest.raises(InvalidInput, match="greedy has no settings"):
        parse("greedy(depth=3)")


TWO_NAMES = [
    (method.name, other, ours, (value, again))
    for method in methods().values()
    for other, ours in method.names.items()
    for entry in method.parameters
    if entry.name == ours
    for value, again in [(entry.default, entry.default), (entry.default, entry.high)]
]


@pytest.mark.parametrize(("method", "other", "ours", "values"), TWO_NAMES, ids=str)
def test_a_setting_may_have_one_name_only(method, other, ours, values):
    for pair in ((other, ours), (ours, other)):
        given = dict(zip(pair, values, strict=True))
        inside = ", ".join(f"{key}={value!r}" for key, value in given.items())
        for spec in (
            f"{method}({inside})",
            {"method": method, **given},
            json.dumps({"method": method, **given}),
        ):
            with pytest.raises(InvalidInput, match="give one of them") as caught:
                parse(spec)
            assert caught.value.field == f"{method}.{pair[1]}"
            assert pair[0] in caught.value.fix


@pytest.mark.parametrize(("spec", "names"), [
    ("suffix(max_spec_tokens=4, num_speculative_tokens=4)+pld", ["max_spec_tokens"]),
    ({"method": ["suffix", "pld"], "max_spec_tokens": 4, "num_speculative_tokens": 4},
     ["max_spec_tokens", "num_speculative_tokens"]),
    ({"method": "suffix+pld", "max_spec_tokens": 4, "prompt_lookup_num_tokens": 4},
     ["max_spec_tokens", "prompt_lookup_num_tokens"]),
    ({"method": "suffix+pld", "max_ngram": 3, "prompt_lookup_max": 3},
     ["max_ngram", "prompt_lookup_max"]),
], ids=str)  # fmt: skip
def test_so_it_is_in_a_fusion(spec, names):
    with pytest.raises(InvalidInput, match="give one of them") as caught:
        parse(spec)
    assert all(name in str(caught.value) for name in names)


BRACKETS = [
    ("prompt-lookup(budget=specdec++(threshold=0.2),verifier=typical(epsilon=0.1))",
     {"budget": "specdec++(threshold=0.2)", "verifier": "typical(epsilon=0.1)"}),
    ("pld( budget = confidence( threshold = 0.3 , ) )", {"budget": "confidence(threshold=0.3)"}),
    ("pld(verifier=naive-tree, budget='fixed')", {"verifier": "naive-tree", "budget": "fixed"}),
    ("pld(verifier=naive_tree())", {"verifier": "naive-tree"}),
    ({"method": "pld", "budget": "auto(patience=4)"}, {"budget": "auto(patience=4)"}),
    ('{"method": "ngram", "verifier": "typical(delta=0.5)"}', {"verifier": "typical(delta=0.5)"}),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "settings"), BRACKETS, ids=str)
def test_parts_take_settings_in_brackets(spec, settings):
    read = parse(spec)
    assert read.settings == settings
    assert parse(str(read)) == read
    assert str(parse(f"{read}+suffix")) == str(parse(str(parse(f"{read}+suffix"))))


def test_older_names_set_the_part():
    for old, new in (
        ("pld(budget=confidence,threshold=0.3)", "pld(budget=confidence(threshold=0.3))"),
        (
            "pld(budget=specdec++,threshold=0.3)+suffix",
            "pld(budget=specdec++(threshold=0.3))+suffix",
        ),
    ):
        assert parse(old)().budget == parse(new)().budget
        assert parse(old)().budget.threshold == 0.3
    assert str(parse("pld(threshold=0.3)")) == "prompt-lookup(threshold=0.3)"  # auto has none.
    with pytest.raises(InvalidInput, match="give one of them"):
        parse("pld(budget=confidence(threshold=0.3),threshold=0.3)")
    with pytest.raises(InvalidInput, match=r"acceptance_head: .*specdec\+\+"):
        parse("pld(acceptance_head=FILE)")


@pytest.mark.parametrize(("spec", "field"), [
    ("pld(budget=specdec++(threshold=2))", "prompt-lookup.budget=specdec++.threshold"),
    ("pld(budget=specdec++(sure=2))", "prompt-lookup.budget=specdec++ setting"),
    ("pld(budget=none)", "prompt-lookup.budget"),
    ("pld(verifier=typical(epsilon=0.1)(delta=1))", "decoder"),
    ("pld(verifier=" + "typical(epsilon=" * 40 + ")" * 41, "decoder"),
    ("refine(base=" * 200 + "static" + ")" * 200, "decoder"),
])  # fmt: skip
def test_bad_parts_are_refused(spec, field):
    with pytest.raises(InvalidInput) as caught:
        parse(spec)
    assert caught.value.field == field


@pytest.mark.parametrize("spec", [
    "pld(budget=specdec++(head=FILE))", "pld+suffix(budget=delayed(selector=FILE))",
    {"method": ["pld", "suffix"], "budget": "specdec++(head=FILE)"},
    "pld(acceptance_head=FILE,budget=specdec++)", "refine(base=learn2pd(filter=FILE))",
    "joint-sampler(layer=FILE)",
], ids=str)  # fmt: skip
def test_strangers_name_no_files_however_deep(spec):
    with pytest.raises(InvalidInput, match="set it where the server is started"):
        parse(spec, trusted=False)
    with pytest.raises(InvalidInput, match=r"readable file|train"):
        parse(spec)


@pytest.mark.parametrize(
    "spec", ["pld(max_ngram=3, max_ngram=3)", '{"method": "pld", "max_ngram": 3, "max_ngram": 4}']
)
def test_a_setting_is_given_once(spec):
    with pytest.raises(InvalidInput, match=r"max_ngram.*give it once"):
        parse(spec)


@pytest.mark.parametrize("written", ["0", "33", "-1", "3.0", "True", "None", "'3'", "[3]", "1e400",
                                     "nan", "1j", "1" + "0" * 400, "{3}"])  # fmt: skip
def test_bad_values_name_the_setting(written):
    with pytest.raises(InvalidInput, match=r"^prompt-lookup\.max_ngram: "):
        parse(f"prompt-lookup(max_ngram={written})")


@pytest.mark.parametrize("value", ["medusa", 3, None, ["coupled"], True])
def test_bad_choices_list_the_good_ones(value):
    with pytest.raises(InvalidInput, match=r"^prompt-lookup\.verifier: .*coupled"):
        parse({"method": "prompt-lookup", "verifier": value})


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.kind}-{part.name}")
def test_every_setting_takes_its_values_only(part):
    for entry in part.parameters:
        bad, good = [None, {}, "no-such-value", "no-such-part(x=1)", 3j], [entry.default]
        if isinstance(entry.default, bool):
            bad, good = [*bad, 1], [True, False]
        elif isinstance(entry.default, (int, float)):
            assert entry.low <= entry.default <= entry.high
            bad += [entry.low - 1, entry.high + 1, math.nan, math.inf, 10**400, True]
            bad += [entry.low + 0.5] if isinstance(entry.default, int) else []
            good += [entry.low, entry.high]
        else:
            bad = [None, {}, 3j, 3, True, ["x"]] if entry.reads else [*bad, 3, True, ["x"]]
            good = [entry.default] if entry.default and not entry.reads else []
        if entry.local:
            bad, good = [3, None, "x" * 5000, "\0"], []
            with pytest.raises(InvalidInput, match="where the server is started"):
                entry.check(part.name, "a-file", trusted=False)
        for value in bad:
            with pytest.raises(InvalidInput, match=entry.name):
                entry.check(part.name, value)
        for value in good:
            assert entry.check(part.name, value) == value


@pytest.mark.parametrize("setting", ["prophet(anchor", "dimple(prior", "assd(placed"])
@pytest.mark.parametrize("text", [
    "5", "'5'", "'a:1'", "'1:x'", "'--1:2'", "'1:'", "':5'", "'3:1 -2'", "'3:²'", "'3:99999999999'",
    "'" + "9" * 5000 + "'",
])  # fmt: skip
def test_places_that_cannot_be_read(setting, text):
    with pytest.raises(InvalidInput):
        parse(f"{setting}={text})")


@pytest.mark.parametrize(
    "delimiters", ["'a'", "'-3'", "198", "'1,2'", "'99999999999'", "'" + "1 " * 3000 + "'"]
)
def test_delimiters_that_cannot_be_read(delimiters):
    with pytest.raises(InvalidInput):
        parse(f"static(blocks=adaptive(delimiters={delimiters}))")


@pytest.mark.parametrize("method", methods().values(), ids=lambda m: m.name)
def test_every_method_is_described(method):
    assert method.summary.endswith((".", "?"))
    assert method.paper
    assert method.family in ("autoregressive", "diffusion")
    assert method.guarantee in ("exact", "distribution", "lossy")
    assert all(entry.help for entry in method.parameters)
    names = {entry.name for entry in method.parameters}
    assert set(method.names.values()) <= names
    assert not names & set(method.names)
    assert all(find(alias) is method for alias in (method.name, *method.aliases))
    if method.training == "none" or not any(entry.local for entry in method.parameters):
        method.build()  # If anything is trained, it is the model.
    else:  # Without its trained part it says which command makes one.
        with pytest.raises(InvalidInput, match=method.training):
            method.build()


HOSTILE = [
    "(", ")", "()", "f(", "prompt-lookup(", "prompt-lookup(max_ngram=3", "prompt-lookup)(",
    "prompt-lookup(3)", "prompt-lookup(max_ngram=3))", "prompt-lookup(max_ngram=3)(x=1)",
    "prompt-lookup(max_ngram=3).x", "prompt-lookup(*[1])", "prompt-lookup(**{'max_ngram': 3})",
    "prompt-lookup(max_ngram=__import__('os'))", "prompt-lookup(max_ngram=[i for i in x])",
    "prompt-lookup(max_ngram={[]: 1})", "prompt-lookup(verifier={1, []})",
    "prompt-lookup(max_ngram=2**9)", "prompt-lookup(max_ngram=\0)",
    "prompt-lookup(max_ngram='\ud800')",
    "prompt-lookup(max_ngram=" + "(" * 3000, "prompt-lookup(max_ngram=" + "[" * 3000,
    "prompt-lookup(max_ngram=" + "-" * 3000 + "1)", "prompt-lookup(max_ngram=" + "9" * 3900 + ")",
    "prompt-lookup(" + "a=1," * 900 + ")", "prompt-lookup(max_ngram=1" + "+1j" * 900 + ")",
    "prompt-lookup(max_ngram=" + "a." * 1900 + "a)", "not " * 1000, "f(" * 2000,
    "{", "{" * 4000, '{"a":' * 800, '{"method":' * 400, "[" * 4000, '{"method": []}', "{}",
    '{"method": null}', '{"method": {}}', '{"method": 3}', '{"max_ngram": 3}', '{"method": "pld"',
    '{"method": "pld", "max_ngram": NaN}', '{"method": "pld", "max_ngram": 1e999}',
    '{"method": "pld", "max_ngram": ' + "9" * 4000 + "}",
    '{"method": "pld", "max_ngram": ' + "[" * 1500 + "]" * 1500 + "}",
    "a" * MAX_SPEC, "a" * (MAX_SPEC + 1), "a" * 1_000_000, "\ud800", "\0", "🦜" * 100,
    "freedave(base=" * 5 + "static" + ")" * 5, "freedave(base=" * 250 + "static" + ")" * 250,
    "credit(base=credit(base=credit(base=credit(base=credit))))",
    {}, {"method": None}, {"method": "a" * 100_000}, {"method": "pld", 3: 4},
    {"method": "pld", "": 1},
    {"method": "pld", "max_ngram": {}}, {"method": "pld", "max_ngram": 10**5000},
    {"method": [3]}, {"method": b"pld"}, 3, 3.5, True, [], ["pld"], b"pld", object(), Spec,
]  # fmt: skip


@pytest.mark.parametrize(
    "spec", HOSTILE, ids=lambda s: repr(s)[:24] if isinstance(s, str) else None
)
def test_hostile_specs_are_refused(spec):
    with pytest.raises(InvalidInput) as caught:
        parse(spec)
    assert len(str(caught.value)) < 400


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=8), inner)),
    max_leaves=6,
)
SETTINGS = sorted({entry.name for part in PARTS for entry in part.parameters} | {"method"})
keys = st.one_of(st.sampled_from(SETTINGS), st.text())


@given(st.dictionaries(keys, json_values, max_size=4), st.sampled_from([*methods(), "ngram", ""]))
def test_any_json_object_is_read_or_refused(given, name):
    for spec in (given | {"method": name}, json.dumps(given | {"method": name}), given):
        try:
            read = parse(spec)
            read()
            assert str(parse(str(read))) == str(read)
        except InvalidInput as error:
            assert str(error).startswith(error.field)  # noqa: PT017


@given(st.one_of(st.text(max_size=40), st.text(max_size=40).map(lambda s: f"prompt-lookup({s}")))
def test_any_text_is_read_or_refused(text):
    try:
        parse(text)()
    except InvalidInput as error:
        assert str(error).startswith(error.field)  # noqa: PT017


def test_the_package_can_be_called_for_a_table():
    rows = {row["method"]: row for row in paradecode.methods()}
    assert rows.keys() == methods().keys()
    assert (rows["suffix"]["guarantee"], rows["suffix"]["needs"]) == ("exact", "")
    assert rows["draft-model"]["needs"] == "a draft model"
    assert "head" in rows["eagle"]["needs"]
