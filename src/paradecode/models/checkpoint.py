"""A loaded model, in the form that every reader returns and backends take."""

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
        config: sizes and facts.
        weights: canonical name -> Tensor for all of ``config.tensors()``; usually memory-mapped.
        tokenizer: converts between text and token ids.
        chat_template: renders messages; None if the model is not a chat model.
        source: the file or folder of the model, for messages.
    """

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    source: str
