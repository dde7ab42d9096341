"""Write training texts, and put them into batches.

The texts are tasks with right answers, like those that the tiny models learn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from paradecode.backends.torch.model import Transformer
from paradecode_lab.measure.tasks.task import Task, stream
from paradecode_lab.training.adaptation.texts import BlockText
from paradecode_lab.training.batched import final_states

MODEL = "model"
"""Name of the folder of the result, in the folder of a run."""


def write_tasks(path: Path, tasks: tuple[Task, ...], count: int, seed: int) -> None:
    """Write ``count`` training instances of the tasks, one in a line; none is held out."""
    found = islice(stream(tasks, Random(f"retraining/{seed}")), count)
    lines = (json.dumps({"prompt": one.prompt, "answer": one.answer}) for one in found)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


@dataclass(frozen=True, eq=False)
class AnswerRows:
    """The texts of a step, padded at the right.

    Attributes:
        tokens: int64 [B, L].
        start, end: int64 [B], index of the answer's first token, and index after the text's last
            one.
    """

    tokens: Tensor
    start: Tensor
    end: Tensor

    @property
    def answers(self) -> Tensor:
        """The columns of answers, bool [B, L]."""
        at = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return self.inside & (at >= self.start[:, None])

    @property
    def inside(self) -> Tensor:
        """The columns of texts, without padding, bool [B, L]."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.end[:, None]

    def predicted(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states [K, D] that predict the answers' tokens, and these tokens [K].

        Args:
            states: [B, L, D], states of all columns.
        """
        row, at = self.answers.nonzero(as_tuple=True)
        return states[row, at - 1], self.tokens[row, at]


def causal_states(model: Transformer, rows: AnswerRows) -> Tensor:
    """Return states [B, L, D] before the last norm; each token sees the text up to itself."""
    places = torch.arange(rows.tokens.shape[1], device=rows.tokens.device)
    return final_states(model, rows.tokens, places, places <= places[:, None], rows.inside)


def rows_of(texts: list[BlockText], device: torch.device) -> AnswerRows:
    """Put texts into one padded batch."""
    tokens = np.zeros((len(texts), max(len(text.tokens) for text in texts)), np.int64)
    for row, text in zip(tokens, texts):
        row[: len(text.tokens)] = text.tokens
    start, end = (np.array([getattr(text, name) for text in texts]) for name in ("start", "end"))
    return AnswerRows(*(torch.from_numpy(part).to(device) for part in (tokens, start, end)))
