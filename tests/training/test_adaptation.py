"""Adaptation: from an autoregressive model to a block diffusion model that the engine decodes."""

import json
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from paradecode.backends import open_backend
from paradecode.backends.interface import Span
from paradecode.models.adapter import Adapter, Facts, adapter_shapes, merge, read_adapter
from paradecode.models.catalogue import open_model
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.tiny import tiny_checkpoint
from paradecode_lab.training.adaptation.evaluation import likelihood
from paradecode_lab.training.adaptation.model import Adapted, new_adapter, tensors_of
from paradecode_lab.training.adaptation.objective import (
    batch_of,
    causal_logits,
    complementary,
    loss_sum,
    masked_logits,
)
from paradecode_lab.training.adaptation.texts import BlockText, make_own, read_texts, whole_blocks
from paradecode_lab.training.adaptation.training import ADAPTER, AdaptationPlan, AdapterTraining
from paradecode_lab.training.diffusion.model import TinyModel, save_model, tiny_config
from paradecode_lab.training.diffusion.vocabulary import build_tokenizer, save_tokenizer
from paradecode_lab.training.running import CHECKPOINT, LOG

CPU, MASK = torch.device("cpu"), 95
PLAN = AdaptationPlan(rank=8, block=4, steps=8, batch=6, together=4, rate=3e-3)
SHIFTS = pytest.mark.parametrize("shift", [True, False])


pytestmark = pytest.mark.usefixtures("one_thread")


def base() -> Checkpoint:
    return Checkpoint(*tiny_checkpoint("llama"), None, None, "nowhere")


def facts(shift: bool = True, block: int = 4, rank: int = 8) -> Facts:
    return Facts("tiny-llama", rank, block, MASK, shift)


def any_adapter(shift: bool) -> Adapter:
    random, shapes = np.random.default_rng(0), adapter_shapes(base().config, 8)
    made = {n: (random.standard_normal(s) / s[-1] ** 0.5).astype("f2") for n, s in shapes.items()}
    return Adapter(facts(shift), made)


def adapted(shift: bool) -> Adapted:
    config, weights = tiny_checkpoint("llama")
    tensors = tensors_of(any_adapter(shift), torch.float64, CPU)
    return Adapted(config, weights, facts(shift), tensors, torch.float64, CPU)


def texts(count: int = 40, seed: int = 0) -> list[BlockText]:
    """Return texts with prompts of 3 to 5 tokens and answers that repeat the prompt's token."""
    random, made = np.random.default_rng(seed), []
    for _ in range(count):
        first = int(random.integers(4, 24))
        prompt = [first] * int(random.integers(3, 6))
        text = whole_blocks(prompt, [first] * int(random.integers(3, 9)) + [0], 4, 64, (0,))
        assert text is not None
        made.append(text)
    return made


def quiet(*_: object) -> None:
    pass


def test_texts_are_in_whole_blocks():
    text = whole_blocks([5, 6, 7], [8, 9, 2], 4, 64, (2,))
    assert (text.tokens.tolist(), text.start, text.end) == ([5, 6, 7, 8, 9, 2, 2, 2], 3, 6)
    cut = whole_blocks([5, 6, 7], [8, 9, 9], 4, 64, (2,))
    assert (cut.tokens.tolist(), cut.start, cut.end) == ([5, 6, 7, 8], 3, 4)
    long = whole_blocks([5], [8] * 30 + [2], 4, 14, (2,))
    assert (len(long.tokens), long.end) == (12, 12)
    assert whole_blocks([5] * 12, [8, 2], 4, 12, (2,)) is None
    assert whole_blocks([5], [], 4, 12, (2,)) is None
    assert whole_blocks([], [8] * 9, 4, 12, (2,)) is None


def test_every_answer_position_is_masked_in_one_copy():
    batch, random = batch_of(texts(30)), np.random.default_rng(0)
    shares = []
    for level in (0.0, 0.5, 1.0):
        levels = np.full((30, batch.tokens.shape[1] // 4), level)
        masked = complementary(batch, 4, levels, random)
        assert np.array_equal(masked.sum(1), batch.answer)
        counts = masked[:, 0].reshape(30, -1, 4).sum(-1)
        sizes = batch.answer.reshape(30, -1, 4).sum(-1)
        assert (counts[sizes > 0] >= 1).all()  # At least one.
        shares.append(counts.sum() / sizes.sum())
    assert shares[0] < 0.45 < shares[1] < 0.75 < shares[2] == 1.0


@SHIFTS
def test_copies_give_the_logits_of_the_merged_model_while_decoding(shift):
    """Each copy must give the logits that the engine gives for the same canvas while decoding."""
    model, merged = adapted(shift), merge(base(), any_adapter(shift))
    backend = open_backend("torch", merged.config, merged.weights, dtype="fp64", threads=1)
    backend.reserve(2)
    text = texts(1, seed=3)[0]
    batch, random = batch_of([text]), np.random.default_rng(1)
    masked = complementary(batch, 4, random.random((1, len(text.tokens) // 4)), random)
    got, right = masked_logits(model, batch, masked, 4)
    at = 0
    for copy in range(2):
        for position in np.flatnonzero(masked[0, copy]):
            end = (position // 4 + 1) * 4  # Blocks before are finished, later ones not there.
            tokens = text.tokens[:end].copy()
            hidden = masked[0, copy, :end] & (np.arange(end) >= end - 4)
            tokens[hidden] = MASK
            places = np.arange(end, dtype=np.int32)
            span = Span(
                pages=np.arange(2, dtype=np.int32), tokens=tokens, positions=places, slots=places,
                context=0, logits=np.array([position - shift], np.int32),
                mask=places[None, :] // 4 <= places[:, None] // 4,
            )  # fmt: skip
            (wanted,) = backend.forward([span])
            ids = np.arange(MASK)
            np.testing.assert_allclose(
                got[at, :MASK].numpy(), wanted.logits.gather(ids[None])[0], atol=1e-4
            )
            assert int(right[at]) == text.tokens[position]
            at += 1
    assert at == len(got) == int(batch.answer.sum())
    assert torch.isinf(got[:, MASK]).all()


def test_a_causal_block_of_one_is_the_causal_model():
    config, weights = tiny_checkpoint("llama")
    start = new_adapter(config, weights, facts(block=1), 0, CPU)
    model = Adapted(config, weights, facts(block=1), start, torch.float32, CPU)
    batch = batch_of(texts(5))
    masked = batch.answer[:, None]
    got, right = masked_logits(model, batch, masked, 1)
    wanted, same = causal_logits(model, batch, batch.answer)
    assert torch.equal(right, same)
    np.testing.assert_allclose(got[:, :MASK].numpy(), wanted[:, :MASK].numpy(), atol=1e-4)


def test_the_teacher_speaks_where_nothing_right_of_a_position_is_visible():
    model, text = adapted(True), texts(1, seed=3)[0]
    batch = batch_of([text])
    masked = np.zeros((1, 1, len(text.tokens)), bool)
    masked[0, 0, 5], masked[0, 0, 7] = True, True  # 6 is visible: only 7 is taught.
    plain = loss_sum(model, batch, masked, 4, 0.0)
    both = loss_sum(model, batch, masked, 4, 0.5)
    mine = masked_logits(model, batch, masked, 4)[0][1, :MASK].log_softmax(-1)
    only = np.zeros((1, len(text.tokens)), bool)
    only[0, 7] = batch.text[0, 7]
    assert only.any()
    theirs = causal_logits(model, batch, only)[0][0, :MASK].log_softmax(-1)
    divergence = (theirs.exp() * (theirs - mine)).sum()
    torch.testing.assert_close(both - plain, 0.5 * divergence)
    model.adapter["mask"].requires_grad_()
    loss_sum(model, batch, masked, 4, 0.5).backward()
    assert model.adapter["mask"].grad.isfinite().all()


@pytest.mark.first(1)
@SHIFTS
def test_the_loss_falls_and_the_bound_with_it(tmp_path, shift):
    plan = replace(PLAN, steps=60, shift=shift)
    trainer = AdapterTraining(plan, base(), facts(shift), texts(), CPU)
    before = likelihood(trainer.model, texts(8, seed=9), 4, 4, 0, quiet)
    losses = []
    assert trainer.run(tmp_path, lambda: False, lambda *told: losses.append(told[1]))
    after = likelihood(trainer.model, texts(8, seed=9), 4, 4, 0, quiet)
    assert losses[-1] < 0.5 * losses[0]
    assert after.bound.high < before.bound.low
    assert after.autoregressive == before.autoregressive
    assert after.texts == 8
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [line["block"] for line in lines] == [2, 4, 4]
    stored = read_adapter(tmp_path / ADAPTER, base().config).tensors
    for name, tensor in trainer.model.adapter.items():
        np.testing.assert_allclose(stored[name], tensor.detach().numpy(), rtol=1e-3, atol=1e-4)


def test_the_bound_is_the_mean_over_all_orders():
    """The bound must equal the exact mean over all masks of a block of three tokens."""
    model = adapted(True)
    text = BlockText(np.array([5, 6, 7, 8, 9, 10, 11, 0], np.int32), 5, 8)
    batch = batch_of([text])

    def nats(masked: set[int], position: int) -> float:
        where = np.zeros((1, 1, 8), bool)
        where[0, 0, sorted(masked)] = True
        logits, right = masked_logits(model, batch, where, 4)
        index = sorted(masked).index(position)
        return float(-logits[index].log_softmax(-1)[right[index]])

    total = 0.0
    for order in permutations((5, 6, 7)):
        total += sum(nats(set(order[i:]), position) for i, position in enumerate(order)) / 6
    found = likelihood(model, [text] * 100, 4, 30, 0, quiet)
    assert np.log(found.bound.value) == pytest.approx(total / 3, rel=0.02)
    exact = causal_logits(model, batch, batch.text)
    mean = float(torch.nn.functional.cross_entropy(*exact))
    assert np.log(found.autoregressive.value) == pytest.approx(mean)


@pytest.mark.first(1)
@pytest.mark.parametrize("distil", [0.0, 0.5])
def test_a_stopped_run_ends_with_the_adapter_of_an_unbroken_one(tmp_path, distil):
    plan = replace(PLAN, distil=distil)

    def fresh(plan: AdaptationPlan = plan, learnt: int = 40) -> AdapterTraining:
        return AdapterTraining(plan, base(), facts(), texts(learnt), CPU)

    unbroken, broken, resumed = fresh(), fresh(), fresh()
    for _ in range(plan.steps):
        unbroken.advance()
    asked = iter([False] * 3 + [True])
    assert not broken.run(tmp_path, lambda: next(asked), quiet)
    assert not (tmp_path / ADAPTER).exists()
    resumed.resume(tmp_path / CHECKPOINT)
    assert resumed.step == 3
    assert resumed.run(tmp_path, lambda: False, quiet)
    for name, tensor in unbroken.model.adapter.items():
        assert torch.equal(tensor, resumed.model.adapter[name])
    assert not torch.equal(unbroken.model.adapter["mask"], broken.model.adapter["mask"])
    for other, named in ((fresh(replace(plan, rate=1e-3)), "rate"), (fresh(learnt=39), "texts")):
        with pytest.raises(InvalidInput, match=f"{named}: .*begun with"):
            other.resume(tmp_path / CHECKPOINT)
    config, weights = tiny_checkpoint("llama")
    less = Checkpoint(config.altered(layers=config.layers - 1), weights, None, None, "nowhere")
    (tmp_path / "one.gguf").touch()
    for model, named in ((less, rf"layers\.{config.layers - 1}"),
                         (replace(base(), source=str(tmp_path)), "weights")):  # fmt: skip
        with pytest.raises(InvalidInput, match=f"^{named}.*begun with"):
            AdapterTraining(plan, model, facts(), texts(), CPU).resume(tmp_path / CHECKPOINT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random autoregressive chat model with a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "causal"
    folder.mkdir()
    tokenizer, config = build_tokenizer(), tiny_config("autoregressive", 560, 32, 2, 2, 48)
    save_model(TinyModel(config, 0), folder)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="the native core runs on POSIX here")
def test_from_the_models_own_texts_to_a_model_that_decodes(folder, tmp_path):
    quick = ("--own", 16, "--max-tokens", 12, "--steps", 3, "--batch", 4, "--rank", 4,
             "--block", 4, "--draws", 2, "--threads", 1)  # fmt: skip
    output = run("adapt", tmp_path / "run", "--model", folder, *quick)
    assert "perplexity, at most" in output
    written = (tmp_path / "run" / "report.json").read_text()
    report = json.loads(written)
    assert report["bound"]["low"] <= report["bound"]["value"] <= report["bound"]["high"]
    # Training is done, so the second run only measures again.
    run("adapt", tmp_path / "run", "--model", folder, *quick)
    assert (tmp_path / "run" / "report.json").read_text() == written
    adapter = tmp_path / "run" / ADAPTER
    prompt = [{"role": "user", "content": "copy: Ana Bob"}]
    answers = []
    for backend, dtype in (("native", "f32"), ("torch", "fp32")):
        with LLM(folder, adapter=adapter, backend=backend, dtype=dtype, threads=1) as llm:
            assert llm.families == ("diffusion",)
            assert (llm.config.block_length, llm.config.shift) == (4, True)
            plain = llm.chat(prompt, max_tokens=12, decoder="static")
            cached = llm.chat(prompt, max_tokens=12, decoder="static(cache=prefix)")
            fast = llm.chat(prompt, max_tokens=12, decoder="threshold(threshold=0.0)")
        assert plain.token_ids == cached.token_ids
        assert fast.stats.forwards < len(fast.token_ids)
        answers.append(plain.token_ids)
    assert answers[0] == answers[1]
    with LLM(folder, backend="native", threads=1) as llm:
        assert llm.families == ("autoregressive",)
        assert llm.chat(prompt, max_tokens=4).token_ids


def test_own_texts_go_on_where_they_stopped(folder, tmp_path, monkeypatch):
    for module in ("ngrams.own_text", "adaptation.texts"):
        monkeypatch.setattr(f"paradecode_lab.training.{module}.TOGETHER", 4)
    with LLM(folder, backend="native", threads=1) as llm:
        make_own(tmp_path / "all", llm, 9, 6, 1, quiet)
        make_own(tmp_path / "some", llm, 9, 6, 1, quiet)
        data = (tmp_path / "some").read_bytes()
        (tmp_path / "some").write_bytes(data[:-30])
        make_own(tmp_path / "some", llm, 9, 6, 1, quiet)
    assert (tmp_path / "some").read_bytes() == (tmp_path / "all").read_bytes() == data
    assert len(data.splitlines()) == 9


@pytest.mark.wide
def test_texts_of_a_file(folder, tmp_path):
    path, model = tmp_path / "texts.jsonl", open_model(folder)
    lines = [{"prompt": "copy: Ana Bob", "answer": "Ana Bob"}, {"prompt": [6, 7], "answer": [8, 0]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0]]))
    said, given = read_texts(path, model, 4, 64)
    assert model.tokenizer.decode(said.tokens[said.start : said.end].tolist()) == "Ana Bob"
    assert said.tokens[said.end - 1] == 0
    assert given.tokens.tolist() == [6, 7, 8, 0]
    path.write_text(json.dumps({"texts": [lines[1], lines[0]], "refused": 2}) + "\n")
    assert [text.start for text in read_texts(path, model, 4, 64)] == [given.start, said.start]
    bad_lines = ("[]", "{", '{"prompt": "a"}', '{"prompt": [560], "answer": [1]}',
                 '{"prompt": [true], "answer": [1]}', '{"prompt": "a", "answer": 1}',
                 "[" * 10**5, '{"texts": [{"prompt": [1]}]}',
                 '{"texts": {"prompt": [1]}}')  # fmt: skip
    for bad in bad_lines:
        path.write_text(json.dumps(lines[0]) + "\n" + bad + "\n")
        with pytest.raises(InvalidInput, match="--texts line 2"):
            read_texts(path, model, 4, 64)
    path.write_bytes(b"\xff\xfe")
    for bad in (path, tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidInput, match="--texts"):
            read_texts(bad, model, 4, 64)


def test_settings_that_cannot_work(folder, tmp_path):
    for arguments, named in (
        (("--block", 6), "--block"),
        (("--device", "cuda:99"), "device"),
        (("--texts", tmp_path / "none"), "--texts"),
        (("--model", "paradecode/tiny-diffusion"), "model"),
    ):
        with pytest.raises(InvalidInput, match=named):
            run("adapt", tmp_path / "run", "--model", folder, *arguments)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="OUTPUT"):
        run("adapt", tmp_path / "file", "--model", folder)
