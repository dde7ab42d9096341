"""Tests of a draft model whose LM head has only some tokens; outputs stay plain."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import PROMPT, engine, permuted, serve

from paradecode.backends.interface import Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.vocabulary import Vocabulary
from paradecode.llm import LLM
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.vocabulary import trim
from paradecode_lab.training.ngrams.counting import count_ngrams
from tiny_folder import write_folder

TARGET = tiny_checkpoint("llama")
SOME = np.arange(0, 96, 2)


def trimmed(pair, tokens, vocabulary=None):
    """Return (checkpoint, vocabulary) of a model whose LM head has only these target tokens."""
    config, weights = pair
    whole = Checkpoint(config, weights, tokenizer=None, chat_template=None, source="")
    found, vocabulary = trim(whole, vocabulary, np.asarray(tokens))
    return (found.config, found.weights), vocabulary


def drafted(sequence):
    return {token for step in sequence.trace for token in step.tree.tokens.tolist()}


@pytest.mark.parametrize("kind", ["llama", "qwen3"])  # With a tied LM head, and with its own.
@pytest.mark.parametrize("backend", ["q8", "f32", "torch"])
def test_the_rows_that_are_left_say_what_they_said(kind, backend):
    whole = tiny_checkpoint(kind)
    count = whole[0].vocab_size
    tokens = np.arange(3, count, 5)
    less, vocabulary = trimmed(whole, tokens)
    assert less[0].tensors()["head"] == (len(tokens), whole[0].hidden_size)
    assert less[0].tensors()["embed"] == whole[0].tensors()["embed"]
    found = []
    for config, weights in (whole, less):
        if backend == "torch":
            torch = pytest.importorskip("torch")
            from paradecode.backends.torch.backend import TorchBackend

            opened = TorchBackend(config, weights, device=torch.device("cpu"))
        else:
            opened = NativeBackend(config, weights, dtype=backend, threads=1)
        opened.reserve(1)
        rows = np.arange(len(PROMPT), dtype=np.int32)
        span = Span(
            pages=np.zeros(1, np.int32), tokens=np.array(PROMPT, np.int32), positions=rows,
            slots=rows, context=0, logits=np.array([2, len(PROMPT) - 1], np.int32),
        )  # fmt: skip
        found.append(opened.forward([span])[0].logits)
    every, few = found
    assert few.shape == (2, len(tokens))
    columns = np.tile(np.arange(len(tokens)), (2, 1))
    kept = every.gather(np.tile(tokens, (2, 1)))
    if backend == "torch":
        assert np.allclose(few.gather(columns), kept, rtol=1e-5, atol=1e-6)
    else:
        assert np.array_equal(few.gather(columns), kept)
    assert vocabulary.said(few.argmax()).tolist() == tokens[kept.argmax(axis=1)].tolist()
    wide = vocabulary.widened(few).gather(np.tile(np.arange(count), (2, 1)))
    assert np.array_equal(wide[:, tokens], few.gather(columns))
    assert np.isneginf(np.delete(wide, tokens, axis=1)).all()


@pytest.mark.first(3)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", [
    "draft-model", "draft-model(width=1,budget=fixed)", "draft-model(verifier=rsd)",
    "s2d(sure=0.1)", "pearl", "mirror-sd", "prompt-lookup+draft-model",
])  # fmt: skip
def test_every_method_gives_the_plain_output(method, temperature):
    eng = engine(TARGET, *trimmed(TARGET, SOME))
    lossless = "rsd" in method and temperature > 0  # In distribution only.
    plain, sequence = serve(eng, ["greedy", method], temperature=temperature, ignore_eos=True)
    if not lossless:
        assert sequence.output == plain.output
    copied = set(PROMPT) | set(plain.output) if "lookup" in method else set()
    assert drafted(sequence) <= {*SOME.tolist(), *copied}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("params", [
    {}, {"repetition_penalty": 1.6}, {"logit_bias": {40: -100.0, 20: 3.0}},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
])  # fmt: skip
def test_a_draft_that_can_say_the_output_is_always_accepted(params, temperature):
    """A draft model that lacks only tokens outside of the output has all its drafts accepted.

    It uses the target's penalties, bans and noise.
    """
    (plain,) = serve(engine(TARGET), ["greedy"], temperature=temperature, ignore_eos=True, **params)
    tokens = np.unique([*plain.output, 1, 90])
    eng = engine(TARGET, *trimmed(TARGET, tokens))
    chain = "draft-model(width=1,budget=fixed)"
    (sequence,) = serve(eng, [chain], temperature=temperature, ignore_eos=True, **params)
    assert sequence.output == plain.output
    assert sequence.stats.accepted == sequence.stats.drafted > 0


def test_what_a_trimmed_draft_cannot_say_is_not_drafted():
    (plain,) = serve(engine(TARGET), ["greedy"], ignore_eos=True)
    lost = plain.output[3]
    eng = engine(TARGET, *trimmed(TARGET, np.delete(np.arange(96), lost)))
    (sequence,) = serve(eng, ["draft-model(width=1,budget=fixed)"], ignore_eos=True)
    assert sequence.output == plain.output
    assert lost not in drafted(sequence)
    assert 0 < sequence.stats.accepted < sequence.stats.drafted


def test_other_token_ids_are_translated_and_trimmed():
    order = np.random.default_rng(0).permutation(96)
    vocabulary = Vocabulary(
        order.astype(np.int32), np.argsort(order).astype(np.int32), np.arange(97)
    )
    eng = engine(TARGET, *trimmed(permuted(TARGET, order), SOME, vocabulary))
    plain, sequence = serve(eng, ["greedy", "draft-model"], ignore_eos=True)
    assert sequence.output == plain.output
    assert sequence.stats.accepted > 0
    assert drafted(sequence) <= set(SOME.tolist())


def test_a_table_of_n_grams_says_which_tokens_are_left(tmp_path):
    folder = str(write_folder(tmp_path / "m", "llama"))
    random = np.random.default_rng(0)
    count_ngrams([random.choice(SOME, 64).tolist() for _ in range(40)], 96).save(tmp_path / "t")
    with LLM(folder, draft_model=folder, draft_vocabulary=tmp_path / "t", backend="native") as llm:
        vocabulary = llm.engine.vocabularies["draft"]
        assert set(vocabulary.outputs.tolist()) <= set(SOME.tolist())
        plain, made = (
            llm.complete([list(PROMPT)], decoder=spec, max_tokens=24, ignore_eos=True)[0]
            for spec in ("greedy", "draft-model(budget=fixed)")
        )
    assert made.token_ids == plain.token_ids
    assert made.stats.drafted > 0


def test_what_cannot_be_trimmed_is_refused(tmp_path):
    folder = str(write_folder(tmp_path / "m", "llama"))
    with pytest.raises(InvalidInput, match=r"draft_vocabulary.*name a draft_model"):
        LLM(folder, draft_vocabulary="own.ngrams")
    with pytest.raises(InvalidInput, match="draft_vocabulary"):
        LLM(folder, draft_model=folder, draft_vocabulary=tmp_path / "none.ngrams")
    with pytest.raises(InvalidInput, match=r"draft_vocabulary.*ids up to"):  # Of a larger model.
        LLM(folder, draft_model=folder, draft_vocabulary="smollm2-135m-instruct")
    with pytest.raises(InvalidInput, match="has none of its tokens"):
        trimmed(TARGET, [200])
    with pytest.raises(InvalidInput, match="from left to right"):
        trimmed(tiny_checkpoint("llada"), SOME)
    with pytest.raises(InvalidModel, match="outputs"):
        replace(TARGET[0], outputs=5)  # Its LM head is the embedding.
    with pytest.raises(InvalidModel, match="outputs"):
        replace(TARGET[0], tied_head=False, outputs=97)
    eng = engine(TARGET, *trimmed(TARGET, SOME))
    with pytest.raises(InvalidInput, match="draft_model"):
        serve(eng, ["triforce(guesses=1,keys=16,recent=4)"])
