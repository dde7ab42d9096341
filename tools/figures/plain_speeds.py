"""Measures plain decoding beside llama.cpp, and ik_llama.cpp if it is there, on the same files.

    python -m tools.figures.plain_speeds [--model FILE.gguf] [--shapes NAME ...] [--rounds 5]
        [--context 64] [--tokens 64] [--out FILE.json]

``IK_LLAMA_CPP`` may name a checkout of ik_llama.cpp, as for ``make bench``. Without ``--model`` the
files are random: they have the shapes of published models, random blocks of Q4_0, and an embedding
of Q8_0, which is the LM head, too. They say how fast a shape is, and nothing about texts. The
engines take turns, and the one that waits is stopped. Only this engine also samples.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from paradecode.models.catalogue import open_model
from paradecode.models.text_stream import byte_characters
from paradecode_lab.measure.machine import usable_cores
from tools.figures.perplexity import text_ids
from tools.peers.environments import IK_LLAMA_CPP, install
from tools.peers.process import Worker
from tools.script import OUT, Columns, options, save, show, stamped

Q4, Q8 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0
SECONDS = 600.0
"""Seconds in which a worker loads a model or answers."""
LFM2: dict[str, Any] = {
    "block_count": 16, "context_length": 8192, "rope.freq_base": 1e6, "shortconv.l_cache": 3,
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
LFM2_ATTENDS = (2, 5, 8, 10, 12, 14)
QWEN: dict[str, Any] = {
    "block_count": 24, "context_length": 8192, "embedding_length": 1024,
    "feed_forward_length": 3584, "attention.head_count": 8, "attention.head_count_kv": 2,
    "attention.key_length": 256, "attention.value_length": 256, "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0], "rope.freq_base": 1e7,
    "attention.layer_norm_rms_epsilon": 1e-6, "ssm.conv_kernel": 4, "ssm.inner_size": 2048,
    "ssm.state_size": 128, "ssm.time_step_rank": 16, "ssm.group_count": 16,
    "full_attention_interval": 4,
}  # fmt: skip
SHAPES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "LFM2-350M": ("lfm2", 65536, LFM2 | {"embedding_length": 1024, "feed_forward_length": 4608,
                                         "attention.head_count": 16}),
    "LFM2-1.2B": ("lfm2", 65536, LFM2 | {"embedding_length": 2048, "feed_forward_length": 8192,
                                         "attention.head_count": 32}),
    "Qwen3.5-0.8B": ("qwen35", 248320, QWEN),
}  # fmt: skip
"""Name -> architecture, number of tokens, and the facts of the file."""
COLUMNS: Columns = {
    "model": "{name}", "MB": "{megabytes:.0f}", "tokens/s": "{ours:.1f}",
    "sampled": "{sampled:.1f}", "llama.cpp": "{llama_cpp:.1f}",
    "ratio": "{ours_over_llama_cpp:.2f}x",
}  # fmt: skip


class RandomFile:
    """A GGUF file to which random tensors are added."""

    def __init__(self, path: Path, architecture: str, facts: dict[str, Any]) -> None:
        self._writer = GGUFWriter(path, architecture)
        self._random = np.random.default_rng(0)
        for key, value in facts.items():
            add = {float: self._writer.add_float32, int: self._writer.add_uint32,
                   list: self._writer.add_array}[type(value)]  # fmt: skip
            add(f"{architecture}.{key}", value)

    def vocabulary(self, size: int) -> None:
        """Write the bytes, one merge, and tokens that no text is made of."""
        tokens = [*byte_characters(), "in"]
        tokens += [f"<{number}>" for number in range(size - len(tokens))]
        self._writer.add_tokenizer_model("gpt2")
        self._writer.add_tokenizer_pre("gpt-2")
        self._writer.add_token_list(tokens)
        self._writer.add_token_types([1] * size)
        self._writer.add_token_merges(["i n"])
        self._writer.add_bos_token_id(1)
        self._writer.add_eos_token_id(2)

    def matrix(self, name: str, rows: int, columns: int, kind: GGMLQuantizationType = Q4) -> None:
        """Add random blocks, whose numbers have about the variance 1 / columns."""
        values, size = GGML_QUANT_SIZES[kind]
        raw = self._random.integers(0, 256, (rows * columns // values, size), np.uint8)
        scale = np.float16((4.6 if kind == Q4 else 74) ** -1 / columns**0.5)
        raw[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
        self._writer.add_tensor(f"{name}.weight", raw.reshape(rows, -1), raw_dtype=kind)

    def vector(self, name: str, values: NDArray[np.floating[Any]]) -> None:
        self._writer.add_tensor(name, np.ascontiguousarray(values, np.float32))

    def ones(self, name: str, size: int) -> None:
        self.vector(f"{name}.weight", np.ones(size))

    def drawn(self, *shape: int) -> NDArray[np.float32]:
        return self._random.standard_normal(shape, np.float32)

    def close(self) -> None:
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()


def write(path: Path, name: str) -> None:
    """Write a random model of a shape."""
    architecture, vocabulary, facts = SHAPES[name]
    width, heads = facts["embedding_length"], facts["attention.head_count"]
    attends = [
        i in LFM2_ATTENDS if architecture == "lfm2" else i % 4 == 3
        for i in range(facts["block_count"])
    ]
    if architecture == "lfm2":
        facts = facts | {"attention.head_count_kv": [8 * each for each in attends]}
    file = RandomFile(path, architecture, facts)
    file.vocabulary(vocabulary)
    file.matrix("token_embd", vocabulary, width, Q8)
    file.ones("token_embd_norm" if architecture == "lfm2" else "output_norm", width)
    size = facts.get("attention.key_length", width // heads)
    for index, attention in enumerate(attends):
        at = f"blk.{index}."
        file.ones(f"{at}attn_norm", width)
        if attention:
            kept = 8 if architecture == "lfm2" else facts["attention.head_count_kv"]
            gates = 1 if architecture == "lfm2" else 2
            for part, rows in (("q", gates * heads), ("k", kept), ("v", kept)):
                file.matrix(f"{at}attn_{part}", rows * size, width)
            file.matrix(f"{at}attn_output", width, heads * size)
            file.ones(f"{at}attn_q_norm", size)
            file.ones(f"{at}attn_k_norm", size)
        elif architecture == "lfm2":
            file.matrix(f"{at}shortconv.in_proj", 3 * width, width)
            file.vector(f"{at}shortconv.conv.weight", file.drawn(width, 3) / 2)
            file.matrix(f"{at}shortconv.out_proj", width, width)
        else:
            write_delta(file, at, facts)
        file.ones(f"{at}{'ffn_norm' if architecture == 'lfm2' else 'post_attention_norm'}", width)
        for part in ("gate", "up"):
            file.matrix(f"{at}ffn_{part}", facts["feed_forward_length"], width)
        file.matrix(f"{at}ffn_down", width, facts["feed_forward_length"])
    file.close()


def write_delta(file: RandomFile, at: str, facts: dict[str, Any]) -> None:
    """Write the gated delta heads of one layer."""
    width, inner, heads = (
        facts[f"{name}"] for name in ("embedding_length", "ssm.inner_size", "ssm.time_step_rank")
    )
    mixed = inner + 2 * facts["ssm.group_count"] * facts["ssm.state_size"]
    file.matrix(f"{at}attn_qkv", mixed, width)
    file.matrix(f"{at}attn_gate", inner, width)
    file.matrix(f"{at}ssm_alpha", heads, width)
    file.matrix(f"{at}ssm_beta", heads, width)
    file.matrix(f"{at}ssm_out", width, inner)
    file.vector(f"{at}ssm_conv1d.weight", file.drawn(mixed, 4) / 2)
    file.vector(f"{at}ssm_dt.bias", file.drawn(heads) - 4)
    file.vector(f"{at}ssm_a", -np.linspace(1, 16, heads))
    file.ones(f"{at}ssm_norm", inner // heads)


Prompts = list[list[int]]


def prompts_of(model: str, count: int, context: int) -> Prompts:
    """Return pieces of the default text in a model's tokens."""
    ids = text_ids(open_model(model), None, count * context)
    return [ids[begin : begin + context] for begin in range(0, count * context, context)]


def engines_of() -> dict[str, tuple[Path, str, dict[str, Any]]]:
    """Return name -> (Python, worker, settings) of the engines that are installed."""
    own = Path(sys.executable)
    plain = {"decoder": "greedy", "backend": "native"}
    found: dict[str, tuple[Path, str, dict[str, Any]]] = {
        "ours": (own, "paradecode_worker.py", plain),
        "sampled": (own, "paradecode_worker.py", plain | {"temperature": 0.8}),
        "llama_cpp": (own, "xllamacpp_worker.py", {}),
    }
    if os.environ.get(IK_LLAMA_CPP.checkout):
        python = install(IK_LLAMA_CPP, OUT)
        found["ik_llama_cpp"] = (python, "ik_llama_cpp_worker.py", {"repack": 1, "batch": 512})
    return found


def measured(path: Path, prompts: Prompts, tokens: int) -> dict[str, Any]:
    """Return the tokens a second of all engines, behind one answer of each that is not measured."""
    workers: dict[str, Worker] = {}
    room = len(prompts[0]) + tokens + 64
    base = {"model": str(path), "context": room, "threads": usable_cores()}
    for name, (python, script, own) in engines_of().items():
        workers[name] = Worker(python, script, OUT / "logs" / f"{name}.log", {})
        workers[name].ask({"load": base | own}, SECONDS)
    speeds: dict[str, list[float]] = {name: [] for name in workers}
    for prompt in prompts:
        asked = {"prompt_token_ids": prompt, "max_tokens": tokens, "stop_token_ids": []}
        for name, worker in workers.items():
            said = worker.ask({**asked, "tenant": ""}, SECONDS)
            made = len(said["token_ids"]) - said["first_tokens"]
            speeds[name].append(made / said["decode_seconds"])
    for worker in workers.values():
        worker.kill()
    speeds = {name: own[1:] for name, own in speeds.items()}
    others = [name for name in speeds if name.endswith("cpp")]
    ratios = {
        f"{mine}_over_{other}": median(
            a / b for a, b in zip(speeds[mine], speeds[other], strict=True)
        )
        for mine in ("ours", "sampled") for other in others
    }  # fmt: skip
    return {"megabytes": path.stat().st_size / 1e6, "rounds": len(prompts) - 1,
            **{name: median(own) for name, own in speeds.items()}, **ratios}  # fmt: skip


def main() -> None:
    parser = options(__doc__, rounds=5, context=64, tokens=64)
    parser.add_argument("--model")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES], default=[*SHAPES])
    given = parser.parse_args()
    count, rows = given.rounds + 1, list[dict[str, Any]]()
    if given.model:
        prompts = prompts_of(given.model, count, given.context)
        rows.append({"name": Path(given.model).name,
                     **measured(Path(given.model), prompts, given.tokens)})  # fmt: skip
    for name in [] if given.model else given.shapes:
        random = np.random.default_rng(1)
        prompts = random.integers(3, SHAPES[name][1], (count, given.context)).tolist()
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "model.gguf"
            write(path, name)
            rows.append({"name": name, **measured(path, prompts, given.tokens)})
    columns = dict(COLUMNS)
    if "ik_llama_cpp" in rows[0]:
        columns |= {"ik_llama.cpp": "{ik_llama_cpp:.1f}",
                    "over it": "{ours_over_ik_llama_cpp:.2f}x",
                    "sampled over it": "{sampled_over_ik_llama_cpp:.2f}x"}  # fmt: skip
    show(rows, columns)
    save(stamped(context=given.context, tokens=given.tokens, rounds=given.rounds, ways=rows),
         given.out)  # fmt: skip


if __name__ == "__main__":
    main()
