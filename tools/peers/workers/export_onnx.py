"""Export a transformers folder to ONNX Runtime GenAI: folder, target, int4 or int8.

By the package's own model builder and its defaults: blocks of 32 weights, int8 activations.
"""

from __future__ import annotations

import runpy
import sys
import tempfile

import transformers


class NoTokenizer:
    """The builder copies a tokenizer, which a run on token ids does not need."""

    eos_token = bos_token_id = eos_token_id = pad_token_id = None
    model_max_length = 0

    def get_vocab(self) -> dict[str, int]:
        return {}

    def save_pretrained(self, folder: str) -> None:
        """Nothing to save."""


def main(source: str, target: str, precision: str) -> None:
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: NoTokenizer()
    with tempfile.TemporaryDirectory() as cache:
        options = {"-i": source, "-o": target, "-p": precision, "-e": "cpu", "-c": cache}
        sys.argv = ["builder", *(word for option in options.items() for word in option)]
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
