"""The worker's loop, with a tiny model, serves what the library generates."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from looping import Served, ask

from paradecode.constraints.compile import Compiler
from paradecode.core.errors import BackendError
from paradecode.llm import LLM
from paradecode.models.chat import ChatTemplate
from paradecode.models.vocabulary import spelling
from paradecode.serve.lines import encode
from paradecode.serve.outputs import usage
from paradecode.serve.scores import ScoreColumns
from paradecode.serve.wire import (
    Accepted,
    AskStats,
    Cancel,
    ConstraintSpec,
    DecodedText,
    Detokenize,
    Drain,
    Failure,
    PromptInput,
    Tokenize,
    TokenizedPrompt,
    WorkerStats,
)
from paradecode.serve.worker.inbox import AHEAD, Inbox
from tiny_folder import write_folder

MIXED: dict[str, dict[str, Any]] = {
    "plain": {"decoder": "none"},
    "default": {},
    "lookup": {"decoder": "prompt-lookup(max_ngram=2,budget=fixed)"},
    "fused": {"decoder": {"method": "prompt-lookup+token-recycling"}},
    "seeded": {"temperature": 0.9, "seed": 7, "decoder": "suffix(budget=fixed)"},
    "warm": {"temperature": 1.3, "top_p": 0.9, "seed": 1, "repetition_penalty": 1.2},
    "long": {"prompt": "abcdefgh" * 40, "max_tokens": 20},
}


def library(llm: LLM, prompt: str = "abcabcab", **settings: Any) -> Any:
    settings.setdefault("max_tokens", 40)
    decoder = {"none": "greedy"}.get(str(settings.get("decoder")), settings.get("decoder"))
    if decoder is not None:
        settings["decoder"] = decoder
    completion = llm.complete([prompt], ignore_eos=True, **settings)[0]
    assert completion.error is None
    return completion


def test_served_outputs_equal_the_librarys(llm: LLM) -> None:
    expected = {name: library(llm, **settings) for name, settings in MIXED.items()}
    served = Served(llm)
    usual = {"ignore_eos": True, "max_tokens": 40}
    served.run(*(ask(name, **{**usual, **settings}) for name, settings in MIXED.items()))
    for name, completion in expected.items():
        chunks, end = served.of(name)[0], served.done(name)
        assert served.tokens(name) == completion.token_ids, name
        assert served.text(name) == completion.text, name
        assert end.finish_reason == completion.finish_reason
        assert end.stats.prompt_tokens == len(completion.prompt_token_ids)
        assert end.stats.generated == len(completion.token_ids)
        numbers = [chunk.forward for chunk in chunks]
        assert numbers == sorted(set(numbers))
        assert end.stats.forwards == numbers[-1]
    assert any(len(chunk.tokens) > 1 for chunk in served.of("lookup")[0])


def test_several_outputs_and_log_probabilities(llm: LLM) -> None:
    settings: dict[str, Any] = {
        "n": 3,
        "seed": 5,
        "temperature": 1.0,
        "logprobs": 2,
        "max_tokens": 12,
    }
    completion = library(llm, **settings)
    served = Served(llm)
    served.run(ask("a", ignore_eos=True, **settings))
    for index, one in enumerate([completion, *completion.alternatives]):
        assert served.tokens("a", index) == one.token_ids
        scores = ScoreColumns(*(chunk.logprobs for chunk in served.of("a", index)[0]))
        assert len(scores) == len(one.token_ids)
        for (chosen, *top), own in zip(scores, one.logprobs, strict=True):
            assert (chosen.token, chosen.logprob) == (own.token, own.logprob)
            assert [(c.token, c.logprob) for c in top] == list(own.top)
            assert chosen.spelled == spelling(llm.tokenizer, chosen.token)
    assert served.tokens("a", 0) != served.tokens("a", 1)


def test_stop_texts_never_show(llm: LLM) -> None:
    text = library(llm).text
    stop = text[9:13]
    served = Served(llm)
    served.run(ask("a", stop=stop, ignore_eos=True, max_tokens=40))
    end = served.done("a")
    assert (end.finish_reason, end.stopped) == ("stop", stop)
    assert served.text("a") == text[: text.index(stop)]


def test_predictions_are_counted(llm: LLM) -> None:
    known = library(llm).text
    served = Served(llm)
    # This request runs alone. In a batch, it would make no draft in the step of the prompt.
    served.run(ask("bad", prediction="z" * 40, ignore_eos=True, max_tokens=40))
    served.run(
        ask("good", prediction=known, ignore_eos=True, max_tokens=40),
        ask("none", ignore_eos=True, max_tokens=40),
    )
    details = {}
    for name in ("good", "bad", "none"):
        end = served.done(name)
        assert served.text(name) == known
        details[name] = usage([end], 1)["completion_tokens_details"]
        assert sum(end.stats.accepted_per_position) == end.stats.accepted
    assert details["good"]["accepted_prediction_tokens"] > 0
    assert details["bad"]["rejected_prediction_tokens"] > 0
    assert set(details["none"].values()) == {0}
    assert "prompt-lookup" in served.done("none").method


def test_cancelling_frees_the_pages_at_once(llm: LLM) -> None:
    served = Served(llm)
    served.give(*(ask(f"r{i}", n=2, ignore_eos=True, max_tokens=400) for i in range(6)))
    for _ in range(5):
        served.loop.step()
    held = llm.engine.pools["target"].held
    served.give(Cancel(id="r0"), Cancel(id="r5"), Cancel(id="unknown"))
    llm.engine.check()
    assert llm.engine.pools["target"].held < held
    for index in range(2):
        running, waiting = served.done("r0", index), served.done("r5", index)
        assert (running.finish_reason, waiting.finish_reason) == ("cancelled", "cancelled")
        assert running.stats.generated == len(served.tokens("r0", index)) > 0
        assert waiting.stats.generated == 0
    served.run(*(Cancel(id=f"r{i}") for i in range(6)))


def test_draining_finishes_what_was_accepted(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("old", ignore_eos=True, max_tokens=30), Drain(), ask("new"))
    end = served.failure("new")
    assert end.status == 503
    served.finish()
    assert len(served.tokens("old")) == 30


def test_deadlines_end_requests_with_what_they_have(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("a", deadline=1000.0, ignore_eos=True, max_tokens=400))
    served.loop.step()
    served.loop.jobs["a"][0].sequence.arrived -= 2000.0
    served.loop.step()
    end = served.done("a")
    assert end.finish_reason == "deadline"
    assert end.stats.generated == 1
    served.finish()


POISON = 7


def test_a_failure_is_its_requests_own(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, forward = llm.backend, llm.backend.forward

    def fragile(spans: Any) -> Any:
        if any(POISON in span.tokens for span in spans):
            raise BackendError("poisoned")
        return forward(spans)

    monkeypatch.setattr(backend, "forward", fragile)
    served = Served(llm)
    bias = {str(POISON): -1000.0}
    good: dict[str, Any] = {
        "max_tokens": 20,
        "ignore_eos": True,
        "logit_bias": bias,
        "decoder": "none",
    }
    served.give(ask("good", **good))
    bad = replace(ask("bad", n=3, max_tokens=9), prompt=PromptInput(tokens=[5, POISON, 6]))
    served.run(bad)
    end = served.failure("bad")
    assert (end.status, end.type) == (500, "server_error")
    assert "poisoned" not in end.message
    assert len(served.tokens("good")) == 20
    served.run(ask("after", **good))
    assert served.tokens("after") == served.tokens("good")


def test_a_broken_engine_is_reported_to_all(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(llm)
    served.give(ask("a"), ask("b", n=2))

    def broken() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(llm.engine, "step", broken)
    assert not served.loop.step()
    for id in ("a", "b"):
        end = served.failure(id)
        assert end.status == 500
    assert "no more" in caplog.text


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ask("x", max_tokens=0), "max_tokens"),
        (ask("x", temperature="hot"), "temperature"),
        (ask("x", beams=4), "sampling parameter"),
        (ask("x", n=1000), "n"),
        (ask("x", stop_token_ids=[96]), "stop_token_ids"),
        (ask("x", decoder="no-such-method"), "decoder"),
        (ask("x", decoder={"method": "threshold"}), "decoder"),
        (ask("x", decoder={"method": ["a"]}), "decoder"),
        (ask("x", decoder={"method": {"a": 1}}), "method"),
        (ask("x", decoder="retrieval(datastore='/etc/passwd')"), "retrieval.datastore"),
        (ask("x", decoder={"method": "draft-model", "model": "elsewhere/x"}), "decoder.model"),
        (ask("x", decoder="draft-model"), "draft_model"),
        (ask("x", decoder="(" * 5000), "decoder"),
        (ask("x", "a" * 5000), "prompt"),
        (ask("x", prediction="a" * 10**6), "prediction"),
        (ask("x", constraint=ConstraintSpec(type="python", value={})), "constraint.type"),
        (ask("x", "\ud800"), "prompt.text"),
        (replace(ask("x"), prompt=PromptInput(tokens=[])), "prompt"),
        (replace(ask("x"), prompt=PromptInput(tokens=[96])), "prompt"),
        (replace(ask("x"), prompt=PromptInput(tokens=[5] * 4096)), "prompt"),
        (
            replace(ask("x"), prompt=PromptInput(messages=[{"role": "user", "content": "a"}])),
            "model",
        ),
    ],
)
def test_unusable_requests_are_refused(llm: LLM, request_: Any, param: str) -> None:
    served = Served(llm)
    served.give(request_)
    end = served.failure("x")
    assert (end.status, end.type, end.param) == (400, "invalid_request_error", param)
    assert not llm.engine.busy
    assert not served.loop.jobs


def test_one_id_is_one_request(llm: LLM) -> None:
    served = Served(llm)
    served.run(ask("a", ignore_eos=True, max_tokens=9), ask("a", "zz", max_tokens=3))
    assert sum(isinstance(event, Accepted) for event in served.events) == 1
    assert len(served.tokens("a")) == 9


def test_lines_that_are_no_messages(llm: LLM) -> None:
    served = Served(llm)
    served.give(b"garbage\n", b'{"kind":"generate","id":"x"}\n', b"\n", b"[]\n")
    assert [e.id for e in served.events if isinstance(e, Failure)] == ["worker", "x"] + [
        "worker"
    ] * 2


def test_questions(llm: LLM) -> None:
    served = Served(llm)
    served.loop.read(encode(Tokenize(id="t", prompt=PromptInput(text="hi!"))))  # No step needed.
    found = served.events[-1]
    assert isinstance(found, TokenizedPrompt)
    assert found.texts == ["h", "i", "!"]
    served.give(Detokenize(id="d", tokens=[*found.tokens, 95]), AskStats(id="s"))
    text, stats = served.events[-2:]
    assert isinstance(text, DecodedText)
    assert text.text == "hi!<mask>"
    assert isinstance(stats, WorkerStats)
    assert (stats.running, stats.waiting, stats.held_pages) == (0, 0, 0)
    assert stats.memory_bytes > 1 << 20


def test_any_number_of_questions_is_answered_during_a_step(llm: LLM) -> None:
    """Nothing is taken from the inbox, as while the engine reads a long prompt."""
    served, count = Served(llm), 3 * AHEAD
    asked = [Tokenize(id=f"t{index}", prompt=PromptInput(text="hi")) for index in range(count)]
    inbox: Inbox[Any] = Inbox(BytesIO(b"".join(map(encode, asked))), served.loop.read)
    assert [*inbox.take(wait=True)] == [None]  # The end, and not one message before it.
    assert len(served.events) == count


def test_an_answer_is_begun(llm: LLM) -> None:
    """The beginning of an answer follows the template, and is plain text, whatever it contains."""
    llm.chat_template = ChatTemplate(
        "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}(answer){% endif %}"
    )
    served = Served(llm)
    messages = [{"role": "user", "content": "hi"}]
    for begun in ("ab", "ab<eos>", ""):
        served.give(Tokenize(id="t", prompt=PromptInput(messages=messages, begun=begun)))
        found = served.events[-1]
        assert isinstance(found, TokenizedPrompt)
        assert "".join(found.texts) == f"(user)hi(answer){begun}"
        assert 0 not in found.tokens
    long = PromptInput(messages=messages, begun="a" * 10**6)
    served.give(replace(ask("long"), prompt=long))
    assert served.failure("long").param == "prompt"


def test_ids_that_the_model_does_not_have_are_refused(llm: LLM) -> None:
    served = Served(llm)
    served.give(Detokenize(id="d", tokens=[1, 1 << 20]))
    assert served.events[-1] == Failure(
        id="d", status=400, param="tokens",
        message="tokens: 1048576 is not usable; token ids go up to 95",
    )  # fmt: skip


def test_canvases_are_shown_on_demand(tmp_path: Path) -> None:
    write_folder(tmp_path, "sdar")
    with LLM(str(tmp_path), threads=1) as llm:
        expected = llm.complete(["abc"], max_tokens=16, ignore_eos=True)[0]
        served = Served(llm)
        served.run(
            ask("shown", "abc", max_tokens=16, ignore_eos=True, provisional=True),
            ask("plain", "abc", max_tokens=16, ignore_eos=True),
            ask("static", "abc", max_tokens=16, ignore_eos=True, decoder="none"),
        )
        assert served.tokens("shown") == served.tokens("plain") == expected.token_ids
        canvases = [chunk.canvas for chunk in served.of("shown")[0] if chunk.canvas]
        assert any(None in canvas for canvas in canvases)
        assert all(chunk.canvas is None for chunk in served.of("plain")[0])
        end = served.done("static")
        assert end.method == "static"
        assert end.diffusion_steps == end.stats.forwards >= 16


def test_constrained_outputs(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    served = Served(llm)
    choice = ConstraintSpec(type="choice", value=["abba", "cab"])
    served.run(
        ask("one", constraint=choice, max_tokens=20),
        ask("two", n=2, constraint=choice, max_tokens=20, temperature=2.0, seed=4, decoder="none"),
        ask("bad", constraint=ConstraintSpec(type="regex", value="(")),
    )
    assert served.text("one") in choice.value
    assert {served.text("two", 0), served.text("two", 1)} <= set(choice.value)
    end = served.failure("bad")
    assert end.status == 400


def test_the_first_constrained_request_waits_for_nothing_new(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    compiler = Compiler(llm.tokenizer, llm.config.vocab_size, llm.config.eos_tokens)
    monkeypatch.setattr(llm, "_compiler", compiler)
    served = Served(llm)
    served.loop.warm()
    asked: list[str] = []
    monkeypatch.setattr("paradecode.constraints.trial._start", lambda: asked.append("process"))
    monkeypatch.setattr(
        "paradecode.constraints.compile.library_tokenizer", lambda *_: asked.append("table")
    )
    served.run(ask("one", constraint=ConstraintSpec(type="regex", value="[ab]+c"), max_tokens=4))
    served.done("one")
    assert asked == []


def test_a_prompt_without_room_says_so_in_a_word(llm: LLM) -> None:
    served = Served(llm)
    context = llm.config.context_length
    served.give(ask("long", "a" * context), ask("longer", "a" * 99 * context))
    for id in ("long", "longer"):
        assert served.failure(id).code == "context_length_exceeded"
    served.run(ask("fits", "a" * (context - 5), max_tokens=32_000, ignore_eos=True))
    assert len(served.tokens("fits")) == 5


def test_a_budget_of_thoughts(llm: LLM) -> None:
    """Its tokens, the closing mark, and then what a constraint wants, with and without drafts."""
    pytest.importorskip("llguidance")
    llm.chat_template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>"
        "{% endif %}"
    )
    served = Served(llm)
    prompt = PromptInput(messages=[{"role": "user", "content": "abcabc"}])
    choice = ConstraintSpec(type="choice", value=["abba", "cab"])
    warm = {"temperature": 0.9, "seed": 3}
    cases: dict[str, dict[str, Any]] = {
        "budget": {"thoughts": 6}, "none": {"thoughts": 0}, "warm": {"thoughts": 6, **warm},
        "answer": {"thoughts": 6, "constraint": choice, **warm},
        "cut": {"thoughts": 90}, "free": {"constraint": choice},
    }  # fmt: skip
    decoders = {"none": "none", "drafted": "prompt-lookup+token-recycling"}
    for name, settings in cases.items():
        for kind, decoder in decoders.items():
            asked = ask(f"{name}-{kind}", decoder=decoder, max_tokens=20, **settings)
            served.run(replace(asked, prompt=prompt))
        assert served.tokens(f"{name}-none") == served.tokens(f"{name}-drafted")
    found = {name: served.done(f"{name}-none") for name in cases}
    assert [found[name].reasoning for name in cases] == [6, 0, 6, 6, 20, 20]
    assert served.text("none-none").startswith("</think>")
    for name in ("budget", "warm", "answer"):
        assert served.text(f"{name}-none")[6:14] == "</think>"
    assert served.text("answer-none")[14:] in choice.value
    assert usage([found["answer"]], 1)["completion_tokens_details"]["reasoning_tokens"] == 6
