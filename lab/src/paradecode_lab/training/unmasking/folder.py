"""Write a fine-tuned model: a folder like the one it came from, with the new weights.

A model from a GGUF file also becomes such a folder. Its quantised weights are float32 there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.safetensors_dir import stored_name, stored_tensors
from paradecode.models.weights import Kind
from paradecode_lab.training.running import readable
from paradecode_lab.training.unmasking.described import check_described, described

DTYPES = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
COPIED = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
    "vocab.json", "merges.txt",
)  # fmt: skip


def source_of(checkpoint: Checkpoint) -> Path:
    """Return the folder or the GGUF file that a checkpoint was read from.

    Raises:
        InvalidInput: if there is neither a folder nor a file under the given name.
        InvalidModel: if config.json cannot describe the model of a GGUF file; the message names the
            field.
    """
    source = Path(checkpoint.source)
    if source.is_file():
        check_described(checkpoint.config)
    elif not (source / "config.json").is_file():
        fix = "name a GGUF file, or a folder of safetensors, as transformers writes it"
        raise InvalidInput("--model", checkpoint.source, fix)
    return source


def save_folder(checkpoint: Checkpoint, weights: Mapping[str, Tensor], output: Path) -> None:
    """Write weights into a folder, in the precision of the source, and copy its other files.

    Names of tensors are those of the source if it is a folder. Other weights of the source are left
    out. The file of weights gets its name only when it is complete.

    Args:
        weights: canonical name -> weight.

    Raises:
        InvalidInput: if the folder cannot be written.
    """
    source = source_of(checkpoint)
    if source.is_file():
        places = [(stored_name(own), own, checkpoint.weights[own]) for own in weights]
    else:
        places = stored_tensors(source)[1]
    stored = {
        name: weights[own].detach().cpu().to(DTYPES.get(tensor.kind, torch.float32)).contiguous()
        for name, own, tensor in places
        if own in weights
    }
    try:
        output.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            for name, text in described(checkpoint).items():
                (output / name).write_text(text, "utf-8")
        else:
            for name in filter(lambda name: (source / name).is_file(), COPIED):
                shutil.copyfile(source / name, output / name)
        part = output / "model.safetensors.part"
        save_file(stored, str(part), {"format": "pt"})
        part.replace(output / "model.safetensors")
    except OSError as error:
        raise InvalidInput("OUTPUT", str(output), f"give a writable place ({error})") from None


def change_config(folder: Path, layers: int, **settings: object) -> None:
    """Change config.json so that the model has only its first ``layers`` layers.

    Args:
        settings: name -> value of other settings to write.
    """
    path = folder / "config.json"
    with readable(path):
        described = json.loads(path.read_text("utf-8"))
    described |= {"num_hidden_layers": layers, **settings}
    if isinstance(described.get("layer_types"), list):
        described["layer_types"] = described["layer_types"][:layers]
    path.write_text(json.dumps(described, indent=2) + "\n", "utf-8")
