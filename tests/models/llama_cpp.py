"""llama.cpp itself as an oracle, through the package xllamacpp if it is installed."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from gguf_writing import FILE_NAMES, permute
from tokenizer_strings import strings
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from paradecode.models.text_stream import byte_characters
from paradecode.models.tiny import tiny_checkpoint

TYPES = {"normal": 1, "control": 3, "user": 4}


class LlamaCpp:
    """A model that llama.cpp serves; a failure to load it raises RuntimeError."""

    def __init__(self, path: Path) -> None:
        x = pytest.importorskip("xllamacpp")
        params = x.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.warmup, params.use_jinja = 512, 1, False, True
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.verbosity = -1
        self._server = x.Server(params)

    def _post(self, path: str, body: Any) -> Any:
        request = urllib.request.Request(
            self._server.listening_address + path, json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def tokens(self, text: str, special: bool = False) -> list[int]:
        """Return the ids of a text; ``special`` adds BOS and reads control tokens."""
        body = {"content": text, "add_special": special, "parse_special": special}
        return self._post("/tokenize", body)["tokens"]

    def ends(self, token: int) -> bool:
        """Return whether the token, which is forced, ends the text."""
        body = {"prompt": [5], "n_predict": 4, "logit_bias": [[token, 1e4]], "temperature": 0}
        return self._post("/completion", body)["stop_type"] == "eos"

    def render(self, messages: Any, **extra: Any) -> str:
        """Return the prompt of a conversation."""
        return self._post("/apply-template", {"messages": messages, **extra})["prompt"]


def learned(words: Sequence[str] = (), size: int = 700) -> tuple[list[str], list[str]]:
    """Return tokens and merges of the characters of these words.

    By default they are merges of bytes that cross word boundaries, so that these matter.
    """
    backend = Tokenizer(models.BPE())
    letters = [] if words else [*byte_characters()]
    if not words:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator(words or strings(), trainer)
    said = json.loads(backend.to_str())["model"]
    tokens = sorted(said["vocab"], key=said["vocab"].get)
    return tokens, [" ".join(pair) for pair in said["merges"]]


def write_vocabulary(
    path: Path,
    tokens: list[str],
    types: list[int],
    merges: list[str] | None = None,
    pre: str | None = "gpt-2",
    model: str = "gpt2",
    **fields: Any,
) -> Path:
    """Write a tiny model with this vocabulary, in the format of llama.cpp's converter.

    Args:
        fields: further fields of the file below ``tokenizer``, with ``__`` for a dot.
    """
    config, weights = tiny_checkpoint("llama")
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.rope.dim)
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if model == "gpt2":
        writer.add_token_merges(merges or [])
    else:
        writer.add_token_scores([-float(index) for index in range(len(tokens))])
    for name, value in fields.items():
        key = "tokenizer." + name.replace("__", ".")
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string,
               list: writer.add_array}[type(value)]  # fmt: skip
        add(key, value)
    for name, tensor in weights.items():
        rows = tensor.float32()
        layer, _, part = name.removeprefix("layers.").partition(".")
        stored = f"blk.{layer}.{FILE_NAMES[part]}" if part else FILE_NAMES[name]
        if part in ("q", "k"):
            rows = permute(rows, config.heads if part == "q" else config.kv_heads)
        if name in ("embed", "head"):
            rows = rows[[index % len(rows) for index in range(len(tokens))]]
        writer.add_tensor(stored, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
