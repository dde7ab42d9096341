"""What every reader returns: a model ready for a backend, with its words around it."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.models.chat import ChatTemplate
from paradecode.models.config import ModelConfig
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.weights import Weights


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded model.

    Attributes:
        config: shapes and facts.
        weights: canonical name -> Tensor, all of ``config.tensors()``; usually memory-mapped.
        tokenizer: text <-> token ids.
        chat_template: renders messages, or None when the model is not a chat model.
        source: the file or folder it came from, for messages.
    """

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    source: str
