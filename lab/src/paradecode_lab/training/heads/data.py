"""Store the training data of heads in a folder: texts, and the target's states over them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode_lab.measure.machine import digest_of
from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.heads.answers import EngineWriter, Writer
from paradecode_lab.training.heads.features import Features
from paradecode_lab.training.heads.texts import (
    TEXTS,
    HeadText,
    Rounds,
    TextSource,
    kept_states,
    make_texts,
    read_texts,
)
from paradecode_lab.training.running import check_same

SOURCE = "source.json"


@dataclass(frozen=True)
class HeadData:
    """Training texts in a folder.

    Attributes:
        folder: the folder.
        texts: the texts, in an order that mixes all sources.
        refused: number of prompts that were left out because they resemble a prompt used for
            measuring.
    """

    folder: Path
    texts: list[HeadText]
    refused: int

    def features(
        self, llm: LLM, layers: tuple[int, ...], most_bytes: float, tick: Progress
    ) -> Features:
        """Return the target's states over the texts; as many as fit are computed and stored now.

        States that the training of another head stored are used again if they include these layers.

        Args:
            layers: layers whose outputs are needed, ascending.
            most_bytes: the most bytes on disk for states.
            tick: called before each stored file.
        """
        digest = blake2b(b"without last tokens", digest_size=4)
        for text in self.texts:
            digest.update(text.tokens.tobytes())
        every = [*self.folder.glob(f"states-*-{digest.hexdigest()}"),
                 *self.folder.glob("written-*")]  # fmt: skip
        kept = [_layers_of(path) for path in every]
        layers = min((each for each in kept if {*layers} <= {*each}), key=len, default=layers)
        place = f"states-{'-'.join(map(str, layers))}-{digest.hexdigest()}"
        features = Features(
            writer_of(llm), self.texts, layers, self.folder / place, most_bytes,
            kept_states(self.folder, layers),
        )  # fmt: skip
        features.fill(tick)
        return features


def make_data(
    llm: LLM, source: TextSource, folder: Path, tick: Progress, layers: tuple[int, ...] = (),
    most_bytes: float = 0,
) -> HeadData:  # fmt: skip
    """Write the texts of a folder that are still missing, and return all its data.

    Args:
        source: settings of the texts.
        folder: the folder; it is created if it does not exist.
        tick: called before each round of texts.
        layers: layers, ascending, whose outputs are recorded while the target writes. It does not
            have to read these texts again later.
        most_bytes: the most bytes of these states.

    Raises:
        InvalidInput: if the folder was begun with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The digest of the weights tells models with equal names apart. A model is named by its folder,
    # and every training writes OUTPUT/model.
    now: dict[str, Any] = {**asdict(source), "model": llm.model}
    now["weights"] = digest_of(llm.engine.weights)
    for name in ("prompts", "avoid"):
        now[name] = [f"{file} {_digest(file)}" for file in getattr(source, name)]
    if (folder / SOURCE).exists():
        begun = _begun_with(folder / SOURCE)
        # Folders of older versions do not contain a digest of the weights.
        check_same(
            folder / SOURCE, now, {"weights": now["weights"], **begun}, ": name a new folder"
        )
    else:
        (folder / SOURCE).write_text(json.dumps(now, indent=2) + "\n", "utf-8")
    refused = make_texts(folder / TEXTS, Rounds(writer_of(llm), source), tick, layers, most_bytes)
    return HeadData(folder, read_texts(folder / TEXTS, source.length), refused)


def writer_of(llm: LLM) -> Writer:
    """Return the faster writer for a target: PyTorch models write a round as one rectangle."""
    if not llm.backend.name.startswith("torch"):
        return EngineWriter(llm)
    from paradecode.backends.torch.model import Transformer
    from paradecode_lab.training.heads.rectangle import RectangleWriter

    model = getattr(llm.backend, "model", None)
    return RectangleWriter(llm, model) if type(model) is Transformer else EngineWriter(llm)


def _begun_with(path: Path) -> dict[str, Any]:
    """Return the settings that a folder was begun with; raise InvalidInput for a damaged file."""
    try:
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as error:
        fix = f"the file is damaged ({error}): name a new folder, or remove the file if the "
        fix += "folder's texts are of this model and of these settings"
        raise InvalidInput("data", str(path), fix) from None
    return found


def _layers_of(path: Path) -> tuple[int, ...]:
    """Return the layers whose states a folder contains, read from the folder's name."""
    numbers = path.name.split("-")[1 : -1 if path.name.startswith("states") else None]
    return tuple(int(part) for part in numbers if part.isdigit())


def _digest(name: str) -> str:
    path = Path(name)
    return blake2b(path.read_bytes(), digest_size=4).hexdigest() if path.is_file() else ""
