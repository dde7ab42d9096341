"""LoRA adapters that turn a causal model into a masked diffusion model; merged when it is loaded.

LoRA (Hu et al. 2021, arXiv 2106.09685): a matrix W becomes W + b a with thin matrices b and a. The
file also holds the embedding and the id of the mask token, and the length of a block. Everything in
a file is checked against the model before it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import build, checked, flag, text, whole
from paradecode.core.errors import InvalidModel
from paradecode.core.tensor_file import load, save
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.config import ModelConfig
from paradecode.models.masked_diffusion import BLOCKS
from paradecode.models.metadata import as_model
from paradecode.models.weights import Tensor

KIND = "block diffusion adapter 1"
FIELD = "adapter"
ADAPTED = ("q", "k", "v", "o", "gate", "up", "down")
MASK = "mask"
MOST_RANK, MOST_BLOCK = 1024, 4096
MOST_BYTES = 1 << 32


@dataclass(frozen=True)
class Facts:
    """The settings of an adapter.

    Attributes:
        base: name of the model for which it was trained.
        rank: rank of every pair of matrices.
        block_length: number of positions of a block; blocks start at position 0.
        mask_token: id of the token whose embedding is replaced.
        shift: whether the logits of row i predict position i + 1.
    """

    base: str = checked(text(4096))
    rank: int = checked(whole(1, MOST_RANK))
    block_length: int = checked(whole(1, MOST_BLOCK))
    mask_token: int = checked(whole(0))
    shift: bool = checked(flag)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter: its facts, and its float16 tensors.

    The tensors are ``<matrix>.a`` [rank, inputs] and ``<matrix>.b`` [outputs, rank] for each
    adapted matrix (canonical names), and ``mask`` [D].
    """

    facts: Facts
    tensors: Mapping[str, NDArray[np.float16]]


def adapter_shapes(config: ModelConfig, rank: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of all tensors of an adapter of this rank for this model."""
    shapes: dict[str, tuple[int, ...]] = {MASK: (config.hidden_size,)}
    for name, (outputs, inputs) in _matrices(config).items():
        shapes |= {f"{name}.a": (rank, inputs), f"{name}.b": (outputs, rank)}
    return shapes


def _matrices(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return canonical name -> shape of the adapted matrices."""
    shapes = config.tensors().items()
    return {name: shape for name, shape in shapes if name.rpartition(".")[2] in ADAPTED}


def save_adapter(path: Path, adapter: Adapter) -> None:
    """Write an adapter to a file, which gets its name only when it is complete.

    Raises:
        InvalidInput: the file cannot be written.
    """
    facts = asdict(adapter.facts)
    save(path, KIND, facts, adapter.tensors, dtype="<f2", most=MOST_BYTES, field="OUTPUT")


def read_adapter(path: Path, config: ModelConfig) -> Adapter:
    """Read the adapter in a file, for a model of this configuration.

    Raises:
        InvalidModel: the file is missing, damaged, of another kind, or for a model of another size;
            the message says what does not fit.
    """
    name = str(path)
    given, tensors = as_model(lambda: load(name, KIND, FIELD, dtype="<f2", most=MOST_BYTES))
    facts: Facts = as_model(lambda: build(Facts, given, FIELD))
    top = config.vocab_size - 1
    if facts.mask_token > top:
        fix = f"its mask_token is {facts.mask_token}, not from 0 to {top}"
        raise InvalidModel(FIELD, name, fix)
    if facts.mask_token in config.eos_tokens:
        raise InvalidModel(FIELD, name, f"its mask token {facts.mask_token} ends this model's text")
    wanted = adapter_shapes(config, facts.rank)
    found = {key: tensor.shape for key, tensor in tensors.items()}
    for key in sorted(wanted.keys() | found.keys()):
        if found.get(key) != wanted.get(key):
            needs = f"{found.get(key)} in the file, {wanted.get(key)} in the model"
            raise InvalidModel(FIELD, name, f"it is for another model: {key:.80} is {needs}")
    return Adapter(facts, tensors)


def merge_file(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """Merge the adapter in a file into a model (:func:`merge`).

    A warning says if the adapter was trained for another model.
    """
    check_base(checkpoint.config)
    adapter = read_adapter(path, checkpoint.config)
    if adapter.facts.base != checkpoint.config.name:
        said = f"the adapter was trained for {adapter.facts.base}, not {checkpoint.config.name}"
        warnings.warn(said, stacklevel=3)
    return merge(checkpoint, adapter)


def merge(checkpoint: Checkpoint, adapter: Adapter) -> Checkpoint:
    """Return the block diffusion model, with adapted matrices and embedding in float32.

    Raises:
        InvalidModel: the model is not a plain causal one.
    """
    check_base(checkpoint.config)
    facts, weights = adapter.facts, dict(checkpoint.weights)
    for name in _matrices(checkpoint.config):
        a, b = (adapter.tensors[f"{name}.{part}"].astype(np.float32) for part in "ab")
        weights[name] = _float32(weights[name].float32() + b @ a)
    embed = weights["embed"].float32().copy()
    embed[facts.mask_token] = adapter.tensors[MASK]
    weights["embed"] = _float32(embed)
    return replace(checkpoint, config=adapted_config(checkpoint.config, facts), weights=weights)


def adapted_config(config: ModelConfig, facts: Facts) -> ModelConfig:
    """Return the configuration of the merged model."""
    return replace(
        config, name=f"{config.name}+diffusion", attention="block", shift=facts.shift,
        block_length=facts.block_length, mask_token=facts.mask_token, decoder=BLOCKS,
    )  # fmt: skip


def check_base(config: ModelConfig) -> None:
    """Raise InvalidModel unless the model is dense and causal over its whole context."""
    if (
        config.attention != "causal"
        or config.mixture is not None
        or config.sliding_window
        or not config.plain
    ):
        fix = "adapters are for dense causal models without an attention window"
        raise InvalidModel("model", config.name, fix)


def unused_token(checkpoint: Checkpoint) -> int:
    """Choose the token that becomes the mask; it occurs in no text and no conversation.

    The first of these that exists is chosen: the model's own mask token; the first row of the
    embedding without a token (as in SDAR and Fast-dLLM v2); the last control token that neither
    begins nor ends a text and does not occur in the chat format (``<empty_output>`` for SmolLM2).

    Raises:
        InvalidModel: there is no such token.
    """
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    if config.mask_token is not None:
        return config.mask_token
    if tokenizer.vocab_size < config.vocab_size:
        return tokenizer.vocab_size
    used = {config.bos_token, tokenizer.bos, tokenizer.eos, *config.eos_tokens}
    if checkpoint.chat_template is not None:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
        used |= {*checkpoint.chat_template.encode(tokenizer, messages)}
    free = sorted({*tokenizer.control.values()} - used)
    if not free:
        raise InvalidModel("model", config.name, "it has no token that could become the mask")
    return free[-1]


def _float32(values: NDArray[np.float32]) -> Tensor:
    return Tensor(values, values.shape)
