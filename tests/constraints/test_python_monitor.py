"""Attributes after a dot exist in the given files, and no code of the files is run."""

from __future__ import annotations

import random
import re
import time

import numpy as np
import pytest

from paradecode.constraints import compile as compiling
from paradecode.constraints.compile import Compiler
from paradecode.constraints.python import masks
from paradecode.constraints.python.masks import MonitoredText
from paradecode.constraints.python.monitor import AttributesExist, _bound_here
from paradecode.core.errors import DecoderError, InvalidInput

SHOP = '''
import os
raise SystemExit("this file is read, and never run")

LIMIT = 10

class Item:
    price: float = 0.0
    title: str = ""

class Store:
    """A store."""
    open = True

    def __init__(self, name: str, first: Item):
        self.name = name
        self.first = first
        self.items = []
        self.count: int = 0

    @property
    def cheapest(self) -> Item:
        return min(self.items)

    def refill(self, count: int) -> "Store | None":
        self.last_refill = count

class Kiosk(Store):
    def close_early(self): ...

class Magic:
    def __getattr__(self, name): ...

class Foreign(os.PathLike):
    def here(self): ...

class Broken(ValueError):
    code = 1

def open_store() -> Store: ...
def anything(): ...

main = Store("a", Item())
'''
FILES = {"pkg/shop.py": SHOP, "pkg/__init__.py": "from pkg.shop import Kiosk\n"}
STORE = {"open", "name", "first", "items", "count", "cheapest", "refill", "last_refill"}


def names(code: str) -> set[str] | None:
    found = AttributesExist(FILES).names(code.encode())
    return None if found is None else {n.decode() for n in found if not n.startswith(b"__")}


KNOWN = {
    "import shop\ns = shop.Store('a', 1)\ns.": STORE,
    "from shop import Store as S\ns: S = f()\ns.": STORE,
    "from pkg.shop import open_store\ns = open_store()\ns.": STORE,
    "import pkg.shop\ns = pkg.shop.Store()\nprint(s.": STORE,
    "import pkg\nk = pkg.Kiosk()\nk.": STORE | {"close_early"},
    "import shop\nshop.main.": STORE,
    "import shop\nshop.main.first.": {"price", "title"},
    "import shop\nshop.main.cheapest.": {"price", "title"},
    "import shop\ndef f(s: shop.Store, n: int):\n    return 1 + s.": STORE,
    "import shop\ndef f(s: 'shop.Store | None'):\n    if s is not None:\n        s.": STORE,
    "import shop\nif x:\n    s = shop.Store()\n    s.": STORE,
    "import shop\ns = shop.Store()\nf(1,\n  s.": STORE,
    "Some prose. Look:\n```python\nimport shop\ns = shop.main\ns.": STORE,
    "class A:\n  size = 1\n  def go(self):\n    self.it = 1\na = A()\na.": {"size", "go", "it"},
    "import shop\nclass B(shop.Item):\n    extra = 1\nb = B()\nx = b.": {"price", "title", "extra"},
    "import shop\nfor i in shop.": {
        "os", "LIMIT", "Item", "Store", "Kiosk", "Magic", "Foreign", "Broken", "open_store",
        "anything", "main",
    },
}  # fmt: skip

UNKNOWN = [
    "s.",
    "s = unheard_of()\ns.",
    "import shop\nm = shop.Magic()\nm.",
    "import shop\nf = shop.Foreign()\nf.",
    "import shop\ns = shop.anything()\ns.",
    "import shop\ns = shop.Store()\nif x:\n    s = 3\ns.",
    "import shop\ns = shop.Store()\nfor s in y:\n    pass\ns.",
    "import shop\ns = shop.Store()\nf(lambda s: s.",
    "import shop\ndef f(shop):\n    shop.",
    "import shop\n'shop.",
    "import shop\n# shop.",
    'import shop\n"""\nshop.',
    "import shop\nfrom shop.",
    "import shop\nshop.Store().",
    "import shop\nx = 3.",
    "import shop\n```\nshop = 1\n```\nThe shop.",
    "import shop\nthis does not parse at all (\n" + "x = (\n" * 20 + "shop.",
    "class A:\n    def go(self):\n        self.",
]


@pytest.mark.parametrize("code", KNOWN)
def test_what_is_known(code):
    found = names(code)
    assert found is not None
    assert found >= KNOWN[code]
    assert not found & {"Nonsense", "nmae", "price" if "price" not in KNOWN[code] else "nmae"}


@pytest.mark.parametrize("code", UNKNOWN)
def test_what_is_not_known_is_free(code):
    assert names(code) is None


def test_built_in_types_and_errors():
    assert names("x = 'a'\nx.") >= {"upper", "split"}
    assert "append" not in names("x = {}\nx.")
    assert names("import shop\ne = shop.Broken()\ne.") >= {"code", "args"}


PIECES = [b"s", b".", b"s.", b"name", b"na", b"me", b".name", b".nam", b"x", b" ", b"(",
          b"s.first.", b"price", b"open()", b"\xc3", b"\xa9", b"s.nope", b"s.name.nope", b"\n",
          b"nope", *(bytes([code]) for code in b"_abcdefghijklmnopqrtuvwyz"), b""]  # fmt: skip
CODE = "import shop\ns = shop.Store()\n"


def oracle(monitor: AttributesExist, text: bytes) -> bool:
    """Check a text byte by byte: every dot with known names is followed by one of them."""
    for at, value in enumerate(text):
        if value != ord("."):
            continue
        known = monitor.names(text[: at + 1])
        if not known:
            continue
        rest = text[at + 1 :]
        end = next((i for i, value in enumerate(rest) if monitor.ends(value)), len(rest))
        word = rest[:end]
        if word not in known and (end < len(rest) or not any(k.startswith(word) for k in known)):
            return False
    return True


def test_masks_are_what_the_rule_says_of_each_token():
    monitor = AttributesExist(FILES)
    constraint = MonitoredText(monitor, PIECES, CODE.encode())
    rng, end = random.Random(0), len(PIECES) - 1
    seen = 0
    for _ in range(40):
        matcher, text, path = constraint.follow([end]), CODE.encode(), []
        for _ in range(8):
            mask = matcher.mask(path)
            for token, piece in enumerate(PIECES[:-1]):
                wanted = oracle(monitor, text + piece)
                assert mask[token] == wanted, (text, piece)
                assert matcher.allows(path, token) == wanted
            seen += int((~mask[:-1]).any())
            token = int(rng.choice(np.flatnonzero(mask[:-1])))
            text += PIECES[token]
            path.append(token)
            if rng.random() < 0.3:
                matcher.advance(path)
                path = []
    assert seen > 40


def test_a_name_must_be_whole_before_the_end():
    constraint = MonitoredText(AttributesExist(FILES), PIECES, CODE.encode())
    matcher = constraint.follow([len(PIECES) - 1])
    begun = [PIECES.index(b"s."), PIECES.index(b"na")]
    assert not matcher.mask(begun)[-1]
    assert matcher.mask([*begun, PIECES.index(b"me")])[-1]
    with pytest.raises(DecoderError, match="forbids"):
        matcher.advance([PIECES.index(b"s.nope")])


@pytest.mark.parametrize("before", [b"s.", b"s.na", b"s.name", b"s.nope", b"s", b"", b"s.name "])
def test_the_text_before_the_output_counts(before):
    monitor = AttributesExist(FILES)
    before = CODE.encode() + before
    mask = MonitoredText(monitor, PIECES, before).follow([len(PIECES) - 1]).mask(())
    wanted = [oracle(monitor, before + piece) for piece in PIECES[:-1]]
    if before.endswith(b"nope"):  # It was wrong before: that is not the output's fault.
        assert mask[:-1].all()
    else:
        assert mask[:-1].tolist() == wanted


@pytest.mark.wide
def test_the_default_model_writes_attributes_that_exist(llm):
    """Without the monitor the model invents names; with it, every attribute exists.

    Drafts do not change the output.
    """
    constraint = {"type": "python", "value": {"files": FILES, "code": CODE + "print(s."}}
    prompt = CODE + "print(s."
    for seed in range(4):
        settings = {"max_tokens": 24, "temperature": 1.2, "seed": seed, "constraint": constraint}
        plain = llm.complete(prompt, decoder="greedy", **settings)
        drafted = llm.complete(prompt, decoder="prompt-lookup(budget=fixed)", **settings)
        assert drafted.token_ids == plain.token_ids
        monitor = AttributesExist(FILES)
        assert oracle(monitor, (prompt + plain.text).encode())
    free = [llm.complete(prompt, max_tokens=24, temperature=1.2, seed=s).text for s in range(4)]
    assert not all(oracle(AttributesExist(FILES), (prompt + text).encode()) for text in free)


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "value",
    [
        None, {}, {"files": {}}, {"files": []}, {"files": {"a.py": 1}}, {"files": {"a.py": "def"}},
        {"files": {"..": "x = 1"}}, {"files": {"a.py": "x" * (1 << 20) + " = 1"}},
        {"files": {"a.py": "x = 1"}, "code": 5}, {"files": {"a.py": "x = 1"}, "more": 1},
        {"files": {"a.py": "\0"}}, {"files": {"a.py": "(" * 5000}},
        {"files": {f"m{i}.py": "" for i in range(300)}},
    ],
)  # fmt: skip
def test_bad_files_are_refused(compiler, value):
    with pytest.raises(InvalidInput):
        compiler.compile({"type": "python", "value": value})


def test_a_canvas_has_no_monitor(compiler):
    with pytest.raises(InvalidInput, match="automaton"):
        compiler.compile({"type": "python", "value": {"files": FILES}}, "diffusion")


@pytest.mark.parametrize("line", ["for " * 30_000 + "in x.", "lambda " * 30_000 + "x.",
                                  "x := " * 30_000 + "y.", "a.b" * 30_000 + "."])  # fmt: skip
def test_a_long_line_takes_linear_time(line):
    """The time to read a line grows in proportion to its length, also for hostile lines."""
    began = time.process_time()
    AttributesExist({"a.py": "y = 1"}).names(line.encode())
    assert time.process_time() - began < 2


def test_names_that_a_line_binds():
    """The names equal those of a short regular expression, which takes quadratic time."""
    oracle = r"\blambda\b[^:]*\bs\b|\bfor\b(?:(?!\bin\b).)*\bs\b|\bs\s*:="
    words = ("for", "in", "s", "t", "lambda", ":", ":=", "(", " ", "s:=", "former", "s :=", "x.s")
    chance = random.Random(0)
    for _ in range(5000):
        line = " ".join(chance.choices(words, k=chance.randrange(9)))
        assert _bound_here("s", line) == (re.search(oracle, line) is not None), line


def test_what_nobody_writes_is_not_known():
    deep = "class A(" + "a." * 400 + "b):\n    x = 1\n"
    monitor = AttributesExist({"a.py": deep})
    assert monitor.names(b"import a\na.A().") is None
    assert monitor.names(("import a\nx = a" + ".b" * 800 + "\nx.").encode()) is None


def test_constraints_of_one_model_walk_its_vocabulary_once(llm, monkeypatch):
    walked, real = [], compiling.spelling

    def spelling(tokenizer, token):
        walked.append(token)
        return real(tokenizer, token)

    monkeypatch.setattr(compiling, "spelling", spelling)
    masks._token_words.cache_clear()
    fresh = Compiler(llm.tokenizer, llm.config.vocab_size, llm.config.eos_tokens)
    for number in range(2):
        fresh.compile({"type": "choice", "value": [f"a{number}"]}, "diffusion")
        fresh.compile({"type": "python", "value": {"files": {"a.py": f"x = {number}"}}})
    assert 0 < len(walked) <= llm.config.vocab_size
    assert masks._token_words.cache_info().misses == 1
