"""The web page is served safely, and works in a headless browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from http_server import FakePool, Running, done, events, ready, running, settings

from browser import Browser
from paradecode.methods.specs import methods
from paradecode.serve.page import ASSETS
from paradecode.serve.pool import Served
from paradecode.serve.wire import Accepted, Failure, Generate, OutputChunk, WireCommit
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.workers import Events

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e"
)
PATIENCE = 20.0


class ScriptedPool(FakePool):
    """A pool that yields a chunk for each (text, tokens, forward, canvas)."""

    def __init__(self, *script: tuple[str, list[int], int, list[str | None] | None]) -> None:
        super().__init__()
        self.script = script

    async def _events(self, request: Generate) -> Events:
        yield Accepted(id=request.id, prompt_tokens=7)
        for text, tokens, forward, canvas in self.script:
            yield OutputChunk(
                id=request.id, index=0, text=text, tokens=tokens, forward=forward,
                canvas=canvas if request.provisional else None,
                commits=[WireCommit(forward, len(tokens), len(text))],
            )  # fmt: skip
        yield done(request.id, tokens=sum(len(tokens) for _, tokens, _, _ in self.script))


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(settings(), FakePool()) as server:
        yield server


def wait(browser: Browser, expression: str) -> Any:
    """Wait until the expression is true, and return its value."""
    until = time.monotonic() + PATIENCE
    while not (value := browser.run(expression)):
        assert time.monotonic() < until, f"never true: {expression}"
        time.sleep(0.02)
    return value


def opened(browser: Browser, server: Running, width: int = 1280, dark: bool = False) -> None:
    browser.open(server.url + "/", "", width, dark)
    wait(browser, "!document.querySelector('#model').disabled")


def ask(browser: Browser, text: str = "Hello?") -> None:
    """Send a message, and wait for the end of the answer."""
    write(browser, text)
    browser.press("Enter")
    wait(browser, "document.querySelectorAll('.assistant').length > 0")
    wait(browser, "document.querySelector('#stop').hidden")


def write(browser: Browser, text: str) -> None:
    browser.run("document.querySelector('#prompt').focus()")
    browser.call("Input.insertText", text=text)


SPANS = """[...document.querySelectorAll('.assistant:last-child .t')]
    .map(span => [span.textContent, span.className])"""
BODY = "document.querySelector('.assistant:last-child .body').textContent"


def test_every_file_is_served_with_a_strict_policy(served: Running) -> None:
    for path in ("/", *(f"/page/{name}" for name in ASSETS)):
        answer = served.client.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert served.client.get("/page/").status_code == 404
    for path in ("/page/nothing.js", "/page/__init__.py", "/page/..%2f__init__.py", "/page/%00"):
        assert served.client.get(path).status_code == 404


def test_the_files_are_those_of_the_package_and_ask_for_nothing_else() -> None:
    folder = files("paradecode.serve.page") / "assets"
    assert {entry.name for entry in folder.iterdir()} == set(ASSETS)
    for name in ASSETS:
        text = (folder / name).read_text("utf-8")
        assert not re.search(
            r"https?://|//cdn|@import|innerHTML|outerHTML|insertAdjacent|eval\(", text
        )
        assert not re.search(r"localStorage|sessionStorage|document\.cookie", text)
    html = (folder / "index.html").read_text("utf-8")
    assert not re.search(r"\son\w+=|style=|<style|<script>", html)


def test_methods_of_the_picker(served: Running) -> None:
    listed = served.client.get("/page/methods").json()
    assert {entry["name"] for entry in listed} == set(methods())
    assert {"name", "family", "guarantee", "needs", "summary"} == set(listed[0])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 420, 320])
def test_it_loads_and_fits(browser: Browser, served: Running, width: int, dark: bool) -> None:
    opened(browser, served, width, dark)
    assert browser.complaints() == []
    home = {served.url + path for path in ("/", "/v1/models", "/page/methods")}
    asked = set(browser.requests()) - {"data:,", "about:blank"}
    assert asked <= home | {f"{served.url}/page/{name}" for name in ASSETS}
    assert browser.run("document.documentElement.scrollWidth") == width
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 27)" if dark else "rgb(251, 251, 250)")
    assert browser.run("document.activeElement.id") == "prompt"


def test_models_and_the_methods_that_suit_them(browser: Browser, served: Running) -> None:
    opened(browser, served)
    options = "[...document.querySelectorAll('#%s option')].map(option => option.value)"
    assert browser.run(options % "model") == ["tiny", "canvas", "caller"]
    known = methods().values()
    for model, family in (("tiny", "autoregressive"), ("canvas", "diffusion")):
        browser.run(f"(() => {{ const m = document.querySelector('#model'); m.value = '{model}';"
                    "m.dispatchEvent(new Event('change')); })()")  # fmt: skip
        fitting = {m.name for m in known if m.family == family and not m.models}
        assert set(browser.run(options % "method")) == {"", *fitting}


def test_tokens_are_coloured_by_forward(browser: Browser) -> None:
    pool = ScriptedPool(
        ("The", [1], 1, None), (" cat", [2], 2, None), (" sat on", [3, 4], 3, None),
        ("", [5], 4, None), (" it.", [6, 7, 8], 5, None),
    )  # fmt: skip
    with running(settings(), pool) as server:
        opened(browser, server)
        ask(browser)
        assert browser.run(SPANS) == [
            ["The", "t f1"], [" cat", "t f2"], [" sat on", "t f3"], [" it.", "t f5"],
        ]  # fmt: skip
        assert browser.run(BODY) == "The cat sat on it."
        titles = "[...document.querySelectorAll('.t')].map(span => span.title)"
        assert browser.run(titles)[2] == "forward 3, 2 tokens"
        bars = "[...document.querySelectorAll('#strip i')].map(bar => bar.style.height)"
        assert browser.run(bars) == ["25%", "25%", "50%", "25%", "75%"]
        # At the end come the server's own figures: 8 tokens in 2 forwards, 2 of 3 drafts accepted.
        ids = "['tokens', 'forwards', 'per-forward', 'accepted']"
        shown = f"{ids}.map(id => document.getElementById(id).textContent)"
        assert browser.run(shown) == ["8", "2", "4.00", "67\u00a0%"]
        assert "prompt-lookup(max_ngram=2)" in browser.run(
            "document.querySelector('.assistant h2').textContent"
        )
        assert browser.complaints() == []


def test_bars_and_colours_are_the_forwards_of_the_core(browser: Browser, folder: str) -> None:
    """The core makes several steps in a call. The page, chunks and metrics count each of them."""
    served = (Served("tiny", WorkerSettings(model=folder, threads=1)),)
    chosen = replace(settings(), models=served)
    with running(chosen) as server:
        body = {"prompt": "abcabcab", "max_tokens": 40, "temperature": 0, "speculative": "none"}
        sent = server.complete(**body, stream=True, include_metrics=True, ignore_eos=True)
        parts = [json.loads(data) for data in events(sent)[:-1]]
        commits = [part["paradecode"]["commits"] for part in parts if "paradecode" in part]
        numbers = [commit["forward"] for own in commits for commit in own]
        assert any(len(own) > 1 for own in commits)
        assert sorted(set(numbers)) == list(range(1, parts[-1]["metrics"]["forwards"] + 1))
        opened(browser, server)
        browser.run("""for (const [id, value] of Object.entries({method: 'greedy',
            temperature: '0', 'max-tokens': '30'})) document.getElementById(id).value = value""")
        ask(browser, "abcabcab")
        forwards = int(browser.run("document.getElementById('forwards').textContent"))
        colours = "[...document.querySelectorAll('#strip i')].map(bar => bar.className)"
        assert browser.run(colours) == [f"f{at % 6}" for at in range(1, forwards + 1)]
        heights = "[...document.querySelectorAll('#strip i')].map(bar => bar.style.height)"
        assert set(browser.run(heights)) == {"25%"}  # Of four tokens: each forward made one.
        titles = "[...document.querySelectorAll('.t')].map(span => span.title)"
        assert all(said.endswith(", 1 token") for said in browser.run(titles))
        counter = 'paradecode:request_forwards_total{method="greedy",model="tiny"}'
        both = len(set(numbers)) + forwards
        assert f"{counter} {both}.0" in server.client.get("/metrics").text


def test_the_canvas_is_grey_until_it_is_certain(browser: Browser) -> None:
    pool = ScriptedPool(
        ("", [], 1, [None, "Hello", None]), ("Oh, Hello", [1, 2], 2, [None]), (" you", [3], 3, [])
    )
    pool.ready = {"canvas": ready("canvas", "diffusion")}
    with running(settings(names=("canvas",)), pool) as server:
        opened(browser, server)
        browser.run("""window.seen = []; new MutationObserver(() => {
            const canvas = document.querySelector('.canvas');
            if (canvas) seen.push([...canvas.children].map(node => node.className).join(' '));
        }).observe(document.querySelector('#transcript'), {childList: true, subtree: true})""")
        ask(browser)
        assert pool.seen[-1].provisional
        assert "masked provisional masked" in browser.run("seen")
        assert browser.run(BODY) == "Oh, Hello you"
        assert browser.run("document.querySelectorAll('.canvas, .streaming').length") == 0


def test_hostile_text_stays_text(browser: Browser) -> None:
    pool = ScriptedPool((HOSTILE, [1], 1, ["<b>bold</b>", None]))
    with running(settings(), pool) as server:
        opened(browser, server)
        ask(browser, HOSTILE)
        assert browser.run("document.title") == "Paradecode"
        assert (
            browser.run("document.querySelectorAll('main img, main script, main b b').length") == 0
        )
        for place in (".user", ".assistant"):
            text = browser.run(f"document.querySelector('{place} .body').textContent")
            assert text == HOSTILE.replace("\u202e", "\u27e8202E\u27e9")
        assert browser.complaints() == []


def test_stopping_frees_the_request(browser: Browser) -> None:
    pool = FakePool(texts=["word "], pause=0.02, endless=True)
    with running(settings(), pool) as server:
        opened(browser, server)
        for stop in ("document.querySelector('#stop').click()", ""):
            write(browser, "Go on")
            browser.press("Enter")
            wait(browser, "document.querySelectorAll('.assistant:last-child .t').length > 3")
            left = len(pool.left)
            if stop:
                browser.run(stop)
            else:
                browser.press("Escape")
            wait(browser, "document.querySelector('#stop').hidden")
            until = time.monotonic() + PATIENCE
            while len(pool.left) == left and time.monotonic() < until:
                time.sleep(0.02)
            assert len(pool.left) == left + 1
            note = "document.querySelector('.assistant:last-child .note').textContent"
            assert browser.run(note) == "Stopped."


def test_a_conversation_goes_on_and_begins_anew(browser: Browser) -> None:
    pool = FakePool()
    with running(settings(), pool) as server:
        opened(browser, server)
        ask(browser, "First")
        browser.run("document.querySelector('#system').value = 'Be brief.'")
        ask(browser, "Second")
        wait(browser, "document.querySelectorAll('.assistant').length == 2")
        wait(browser, "document.querySelector('#stop').hidden")
        assert pool.seen[-1].prompt.messages == [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "First"},
            {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Second"},
        ]  # fmt: skip
        browser.run("document.querySelector('#new').click()")
        assert browser.run("document.querySelectorAll('.message').length") == 0
        ask(browser, "Third")
        assert [m["content"] for m in pool.seen[-1].prompt.messages or []] == ["Be brief.", "Third"]


def test_settings_reach_the_server(browser: Browser) -> None:
    pool = FakePool()
    with running(settings(), pool) as server:
        opened(browser, server)
        browser.run("""for (const [id, value] of Object.entries({method: 'prompt-lookup',
            'method-settings': 'max_ngram=2', temperature: '0.5', 'top-p': '0.9',
            'max-tokens': '7', seed: '3'})) document.getElementById(id).value = value""")
        ask(browser)
        seen = pool.seen[-1]
        assert seen.decoder == "prompt-lookup(max_ngram=2)"
        found = {k: seen.sampling[k] for k in ("temperature", "top_p", "max_tokens", "seed")}
        assert found == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3}
        browser.run("document.querySelector('#temperature').value = '99'")
        write(browser, "Again")
        browser.press("Enter")
        said = wait(browser, "document.querySelector('#status').textContent")
        assert said.startswith("Temperature")
        assert not browser.run("document.querySelector('#settings').hidden")
        assert len(pool.seen) == 1


@pytest.mark.parametrize("after", [0, 2])
def test_failures_are_said(browser: Browser, after: int) -> None:
    failure = Failure(id="x", status=503, message="<b>the worker ended</b>")
    pool = FakePool(failure=failure, fails_after=after)
    with running(settings(), pool) as server:
        opened(browser, server)
        ask(browser)
        assert browser.run("document.querySelector('.error').textContent") == failure.message
        assert browser.run("document.querySelector('.error').getAttribute('role')") == "alert"
        pool.failure = None
        ask(browser, "Again")
        contents = [m["content"] for m in pool.seen[-1].prompt.messages or []]
        assert contents == (["Again"] if after == 0 else ["Hello?", "Hel", "Again"])


def test_a_server_that_wants_a_key(browser: Browser) -> None:
    pool = FakePool()
    with running(settings(keys=("a-long-key",)), pool) as server:
        browser.open(server.url + "/")
        wait(browser, "document.activeElement.id == 'key'")
        assert "key" in browser.run("document.querySelector('#status').textContent")
        browser.call("Input.insertText", text="a-long-key")
        browser.run("document.querySelector('#key').blur()")
        wait(browser, "!document.querySelector('#model').disabled")
        ask(browser)
        assert browser.run(BODY) == "Hello"
        opened_again = server.url + "/"
        browser.open(opened_again)  # Nothing was kept.
        wait(browser, "document.activeElement.id == 'key'")
        assert browser.run("document.querySelector('#key').value") == ""


MARKDOWN = """Two ways, **both** `short`:

1. First
2. Second <b>thing</b>

```python
print("a < b")
```
"""


def test_markdown_and_what_can_be_done_with_an_answer(browser: Browser) -> None:
    pool = FakePool(texts=[MARKDOWN])
    with running(settings(), pool) as server:
        opened(browser, server)
        ask(browser, "How?")
        rich = "document.querySelector('.assistant .rich')"
        assert browser.run(f"{rich}.querySelector('pre code').textContent") == 'print("a < b")'
        items = f"[...{rich}.querySelectorAll('ol li')].map(item => item.textContent)"
        assert browser.run(items) == ["First", "Second <b>thing</b>"]
        assert browser.run(f"{rich}.querySelectorAll('li b').length") == 0
        assert browser.run(f"{rich}.querySelector('strong').textContent") == "both"
        assert browser.run(BODY) == MARKDOWN  # The coloured forwards are kept behind it.
        press = """label => [...document.querySelectorAll('.assistant .tools button')]
            .find(button => button.textContent === label).click()"""
        browser.run(f"({press})('Forwards')")
        assert browser.run(f"{rich}.hidden")
        browser.run(f"({press})('Regenerate')")
        wait(browser, "document.querySelector('#stop').hidden")
        wait(browser, "document.querySelectorAll('.assistant .tools').length == 1")
        asked = [[m["content"] for m in request.prompt.messages or []] for request in pool.seen]
        assert asked == [["How?"], ["How?"]]
        browser.run("document.querySelector('.user .tools button').click()")
        assert browser.run("document.querySelector('#prompt').value") == "How?"
        assert browser.run("document.querySelectorAll('.message').length") == 0
        assert not browser.run("document.querySelector('#welcome').hidden")
        ask(browser, "!")
        assert [m["content"] for m in pool.seen[-1].prompt.messages or []] == ["How?!"]
        assert browser.complaints() == []


def test_beside_greedy(browser: Browser) -> None:
    pool = FakePool()
    with running(settings(), pool) as server:
        opened(browser, server)
        browser.run("document.querySelector('#beside').click()")
        ask(browser, "First")
        assert [request.decoder for request in pool.seen] == [None, "none"]
        notes = "[...document.querySelectorAll('.pair .remark')].map(note => note.textContent)"
        line = "4 tokens, 2 forwards, 2.00 a forward, 500\u00a0ms"
        assert browser.run(notes) == [line, line, "Same text."]
        assert browser.run("document.querySelectorAll('.pair > .assistant').length") == 2
        ask(browser, "Second")
        wait(browser, "document.querySelectorAll('.pair').length == 2")
        wait(browser, "document.querySelector('#stop').hidden")
        last = [m["content"] for m in pool.seen[-1].prompt.messages or []]
        assert last == ["First", "Hello", "Second"]


def test_an_empty_answer_is_said(browser: Browser) -> None:
    pool = FakePool(texts=[""])
    with running(settings(), pool) as server:
        opened(browser, server)
        ask(browser)
        note = "document.querySelector('.assistant .note').textContent"
        assert browser.run(note) == "The model said nothing."


def test_a_method_has_a_line_of_its_own(browser: Browser, served: Running) -> None:
    opened(browser, served)
    browser.run("""(() => { const m = document.querySelector('#method'); m.value = 'suffix';
        m.dispatchEvent(new Event('change')); })()""")
    about = browser.run("document.querySelector('#about').textContent")
    assert about == f"suffix, exact: {methods()['suffix'].summary}"
    centres = browser.run("""[...document.querySelectorAll('header > *')]
        .map(part => part.offsetTop + part.offsetHeight / 2)""")
    assert max(centres) - min(centres) < 10  # The controls stand in one row.
