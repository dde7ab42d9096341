"""Pairs of tiny models, and engines that check their cache pages at every step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engines import served
from paradecode.backends import open_backend
from paradecode.backends.interface import Backend, Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.decoder import DRAFT, TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.sequence import LiveSequence
from paradecode.models.config import ModelConfig
from paradecode.models.heads.files import read_head, write_head
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor, Weights

PROMPT = (5, 6, 7, 8, 9, 5, 6, 7)
Checkpoint = tuple[ModelConfig, Weights]


def backend(checkpoint: Checkpoint) -> Backend:
    """Return a backend on the native core.

    There a row's result does not depend on other rows of the forward, to the last bit, and a step
    takes a fraction of PyTorch's time.
    """
    return NativeBackend(*checkpoint, dtype="f32", kv_dtype="f32", threads=1)


def permuted(checkpoint: Checkpoint, order: np.ndarray) -> Checkpoint:
    """Return the same model under other token ids: its token i is ``order[i]`` of the original."""
    config, weights = checkpoint
    other = {name: weights[name] for name in config.tensors()}
    for name in {"embed", "head"} & other.keys():
        rows = np.ascontiguousarray(weights[name].float32()[order])
        other[name] = Tensor(rows, rows.shape)
    return replace(config, vocab_size=len(order)), other


def spelling(lacks: int = 3, tokens: int = 96) -> tuple[np.ndarray, Vocabulary]:
    """Return the vocabulary of a draft model that lacks every third token.

    It spells such a token with two or three others.

    Returns:
        int [own tokens], the target's id of each, as :func:`permuted` takes it; and the vocabulary.
    """
    order = np.array([token for token in range(tokens) if token % lacks])
    spelled = [
        [int(np.searchsorted(order, token))]
        if token % lacks
        else [token % 7, 3, token % 5][: 2 + token % 2]
        for token in range(tokens)
    ]
    pieces = np.array([own for piece in spelled for own in piece], np.int32)
    starts = np.cumsum([0, *map(len, spelled)])
    return order, Vocabulary(order.astype(np.int32), pieces, starts)


def deep(layers: int = 6, share: float = 0.1) -> Checkpoint:
    """Return a tiny model whose layers each change little, so that some layers replace all."""
    config, weights = tiny_checkpoint("qwen3")  # Its own head, so texts do not stand still.
    config = config.altered(layers=layers)
    random = np.random.default_rng(0)
    made = {}
    for name, shape in config.tensors().items():
        if not name.startswith("layers."):
            made[name] = weights[name]
            continue
        noise = random.standard_normal(shape, np.float32)
        gain = share if name.endswith((".o", ".down")) else 1.0
        values = 1 + 0.1 * noise if name.endswith("norm") else noise * gain / np.sqrt(shape[-1])
        made[name] = Tensor(values.astype(np.float32), shape)
    return config, made


def engine(
    target: Checkpoint,
    draft: Checkpoint | None = None,
    vocabulary: Vocabulary | None = None,
    **limits: Any,
) -> Engine:
    models = {TARGET: backend(target)}
    if draft is not None:
        models[DRAFT] = backend(draft)
    sizes = Limits(**{"batch": 8, "kv_tokens": 4096, **limits})
    return Engine(models, sizes, vocabularies={DRAFT: vocabulary} if vocabulary else {})


def head_engine(
    target: Checkpoint, name: str = "torch", curve: CostCurve | None = None, **limits: Any
) -> Engine:
    """Return an engine whose heads may read the target's weights.

    The weights are in double precision, or in 4 bits on the native core.
    """
    dtype = "fp64" if name == "torch" else "q4"
    models = {TARGET: open_backend(name, *target, dtype=dtype, threads=1)}
    sizes = Limits(**{"batch": 8, "kv_tokens": 4096, **limits})
    return Engine(models, sizes, None, curve, weights=target[1])


def serve(
    eng: Engine,
    specs: Sequence[str | Mapping[str, Any] | Callable[[], Any]],
    prompt: Sequence[int] = PROMPT,
    **params: Any,
) -> list[LiveSequence]:
    """Run one request for each spec, all in one batch."""
    settings = SamplingParams.from_mapping({"max_tokens": 32, "seed": 3, **params})
    return served(eng, [(spec, prompt, settings) for spec in specs])


def states_of(model: Backend, tokens: Sequence[int], layers: tuple[int, ...]) -> list[np.ndarray]:
    """Return the outputs of layers for every token, float64; nothing is stored in the cache."""
    at, none = np.arange(len(tokens), dtype=np.int32), np.empty(0, np.int32)
    nowhere = np.full(len(tokens), -1, np.int32)
    span = Span(none, np.array(tokens, np.int32), at, nowhere, 0, logits=none, hidden=layers)
    found = model.forward([span])[0].hidden
    return [found[layer].astype(np.float64) for layer in layers]


def chain_of(
    chances: Callable[[list[int]], np.ndarray], text: Sequence[int], most: int, sure: float
) -> list[int]:
    """Return the likeliest tokens one after the other, up to one that is not sure."""
    drafted: list[int] = []
    while len(drafted) < most:
        said = chances([*text, *drafted])
        drafted.append(int(said.argmax()))
        if said.max() < sure:
            break
    return drafted


def check_chains(
    eng: Engine, spec: str, count: int, exit: int, chain: Callable[[list[int], int], list[int]]
) -> tuple[LiveSequence, list[int], set[int]]:
    """Check that every draft after the prompt's is ``chain(text, room)``.

    The layers up to the exit must run once for each row, without the LM head, and verifications
    must go on after them. Returns the sequence, its text, and the lengths of its drafts.
    """
    ran, real = [], eng.models[TARGET].forward

    def forward(spans: Any) -> Any:
        ran.append((spans[0].layers, len(spans[0].positions), len(spans[0].logits)))
        return real(spans)

    eng.models[TARGET].forward = forward
    (sequence,) = serve(eng, [spec], ignore_eos=True, max_tokens=count)
    text, lengths = list(PROMPT), set[int]()
    for number, step in enumerate(sequence.trace):
        wanted = chain(text, count - len(text) + len(PROMPT) - 1) if number else []
        assert step.tree.tokens.tolist() == wanted
        assert step.tree.is_chain
        lengths.add(len(wanted))
        text += step.tokens
    layers = eng.models[TARGET].config.layers
    first, behind = tuple(range(exit)), tuple(range(exit, layers))
    drafts = [step for step in sequence.trace if len(step.tree)]
    verified = sum(len(step.tree) + 1 for step in drafts)
    for part in (first, behind):
        assert sum(rows for ran_layers, rows, _ in ran if ran_layers == part) == verified
    assert not any(logits for ran_layers, _, logits in ran if ran_layers == first)
    assert sum(ran_layers is None for ran_layers, *_ in ran) == len(sequence.trace) - len(drafts)
    return sequence, text, lengths


def check_plain(made: Callable[[], Engine], specs: Sequence[str], **params: Any) -> None:
    """Check that requests in a batch, and the first one alone, give plain decoding's output."""
    params = {"ignore_eos": True, "max_tokens": 24, **params}
    (plain,) = serve(made(), ["greedy"], **params)
    together = serve(made(), [*specs, "greedy"], **params)
    (alone,) = serve(made(), specs[:1], **params)
    assert [one.output for one in (*together, alone)] == [plain.output] * (len(specs) + 2)
    assert alone.stats.drafted > 0


def check_written(
    folder: Path | str, again: Path, made: Callable[[], Engine], spec: str, sizes: dict[str, int]
) -> None:
    """Check that a head drafts the same after it was read and written; ``{}`` is its folder."""
    write_head(read_head(folder), again, sizes)
    trees = []
    for place in (folder, again):
        (sequence,) = serve(made(), [spec.format(place)], ignore_eos=True)
        trees.append([step.tree.tokens.tolist() for step in sequence.trace])
    assert trees[0] == trees[1]
    assert any(trees[0])
