"""Export a transformers folder to ONNX Runtime GenAI. Arguments: folder, target, int4 or int8.

The package's own model builder does it with its defaults: blocks of 32 weights, int8 activations.
"""

from __future__ import annotations

import runpy
import sys
import tempfile

import transformers


class NoTokenizer:
    """Stands for the tokenizer that the builder copies, since a run on token ids needs none."""

    eos_token = bos_token_id = eos_token_id = pad_token_id = None
    model_max_length = 0

    def get_vocab(self) -> dict[str, int]:
        return {}

    def save_pretrained(self, folder: str) -> None:
        """Do nothing, because there is no tokenizer to save."""


def main(source: str, target: str, precision: str) -> None:
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: NoTokenizer()
    with tempfile.TemporaryDirectory() as cache:
        options = {"-i": source, "-o": target, "-p": precision, "-e": "cpu", "-c": cache}
        sys.argv = ["builder", *(word for option in options.items() for word in option)]
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
