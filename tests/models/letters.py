"""A tokenizer.json of single letters, which leaves rows of a tiny model for added tokens."""

from __future__ import annotations

import json
from pathlib import Path

FLAGS = {
    "special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False,
}  # fmt: skip


def letters(path: Path, *added: dict) -> None:
    """Write a tokenizer.json of single letters, followed by the added tokens."""
    vocab = {token: n for n, token in enumerate("abcdefghijklmnopqrstuvwxyz<>/|_01234")}
    said = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{**FLAGS, **each} for each in added],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []},
    }  # fmt: skip
    path.write_text(json.dumps(said))
