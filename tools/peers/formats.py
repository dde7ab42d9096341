"""Converts the same weights to every peer's format, once, from the dequantised file."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from paradecode.core.errors import InvalidInput
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.gguf_file import read_gguf
from paradecode.models.safetensors_dir import stored_name
from tools.peers.environments import ONNXRUNTIME, OPENVINO_EXPORT, Environment

GGUF_KINDS = {"q4_0": Kind.Q4_0, "q8_0": Kind.Q8_0}
SMALL = {Kind.Q4_0, Kind.Q4_1, Kind.Q4_K, Kind.Q5_0}
"""The formats of nearly all matrices in files of about four bits.

Q5_0 is among them, because it replaces Q4_K where rows do not fit.
"""

EXPORTS = {
    "openvino-int4": (OPENVINO_EXPORT, "export_openvino.py", "4"),
    "openvino-int8": (OPENVINO_EXPORT, "export_openvino.py", "8"),
    "onnx-int4": (ONNXRUNTIME, "export_onnx.py", "int4"),
    "onnx-int8": (ONNXRUNTIME, "export_onnx.py", "int8"),
}
"""Formats that are made from the safetensors folder: environment, worker, its setting."""

EXPORT_SECONDS = 3600
WORKERS = Path(__file__).with_name("workers")
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


class FormatError(Exception):
    """A conversion failed; the message becomes the reason in the results."""


class Formats:
    """The files of one model, by name of the format.

    Args:
        source: the GGUF file from which all formats are made.
        folder: the folder in which converted files are kept.
        installed: function that installs an environment if it is missing, and returns its Python.
        say: called with a line for each conversion.
    """

    def __init__(
        self,
        source: Path,
        folder: Path,
        installed: Callable[[Environment], Path] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.source = source
        self.folder = folder / f"{source.stem}-{source.stat().st_size}"
        self._installed, self._say = installed, say
        self._failed: dict[str, FormatError] = {}

    def path(self, name: str) -> Path:
        """Return the file or folder of a format, which is made when it is first needed.

        Raises:
            FormatError: the format is unknown, or the conversion failed.
        """
        if name == "source":
            return self.source
        target = self.folder / (f"{name}.gguf" if name in GGUF_KINDS else name)
        if target.exists():
            return target
        if name in self._failed:
            raise self._failed[name]
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        _remove(partial)
        self._say(f"converting the weights to {name}")
        try:
            self._make(name, partial)
        except FormatError as error:
            # Several engines may need the format, and one attempt is enough.
            self._failed[name] = error
            _remove(partial)
            raise
        partial.rename(target)
        return target

    def _make(self, name: str, target: Path) -> None:
        if name in GGUF_KINDS:
            requantise(self.source, target, GGUF_KINDS[name])
        elif name == "safetensors":
            write_transformers_folder(read_gguf(self.source), target)
        elif name in EXPORTS:
            self._export(target, *EXPORTS[name])
        else:
            raise FormatError(f"unknown format {name}")

    def _export(self, target: Path, environment: Environment, worker: str, how: str) -> None:
        if self._installed is None:
            raise FormatError(f"nothing is installed for {worker}")
        source = self.path("safetensors")
        python = str(self._installed(environment))
        command = [python, str(WORKERS / worker), str(source), str(target), how]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_SECONDS)
        except subprocess.TimeoutExpired:
            raise FormatError(f"{worker}: not done after {EXPORT_SECONDS} s") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise FormatError(f"{worker}: {lines[-1]}")


def weights_of(source: Path) -> str:
    """Return the name that a GGUF file gives its format, such as ``q4_k_m``; or else ``gguf``.

    Raises:
        InvalidInput: ``source`` is no GGUF file.
    """
    try:
        field = GGUFReader(source).get_field("general.file_type")
    except (OSError, ValueError) as error:
        raise InvalidInput("--model", str(source), f"give a GGUF file ({error})") from None
    if field is None:
        return "gguf"
    return LlamaFileType(field.contents()).name.removeprefix("MOSTLY_").lower()


def requantise(
    source: Path,
    target: Path,
    kind: Kind,
    replaced: AbstractSet[Kind] = SMALL,
    change: Callable[[np.ndarray, Kind], np.ndarray] = lambda values, kind: values,
) -> None:
    """Copy a GGUF file, with all matrices of some formats converted to another format.

    Args:
        kind: the new format.
        replaced: the formats that are converted.
        change: called with the float32 values of a matrix and its old format; returns the values to
            write.
    """
    reader = GGUFReader(source)
    architecture = "general.architecture"
    writer = GGUFWriter(target, str(reader.fields[architecture].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == architecture:
            continue
        item = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=item)
    for tensor in reader.tensors:
        data = np.asarray(tensor.data)
        if tensor.tensor_type in replaced and tensor.tensor_type != kind:
            values = dequantize(data, tensor.tensor_type)
            data = quantize(change(values, tensor.tensor_type), kind)
            writer.add_tensor(tensor.name, data, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    finish(writer)


def finish(writer: GGUFWriter) -> None:
    """Write the file, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_transformers_folder(model: Checkpoint, target: Path) -> None:
    """Write float32 safetensors and a configuration, as transformers and vLLM read them."""
    from safetensors.numpy import save_file

    config = model.config
    if config.architecture not in ARCHITECTURES or config.rope.scaling != "none":
        raise FormatError(f"no plain {' or '.join(ARCHITECTURES)}: {config.architecture}")
    if config.rope.factors or config.sliding_window:
        raise FormatError("rope factors and sliding windows are not written")
    target.mkdir()
    tensors = {stored_name(name): tensor.float32() for name, tensor in model.weights.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    described = {
        "architectures": [ARCHITECTURES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token,
        "eos_token_id": max(config.eos_tokens),
        "torch_dtype": "float32",
    }
    (target / "config.json").write_text(json.dumps(described, indent=2), "utf-8")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
