"""A loaded model, in the form that every reader returns and every backend accepts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paradecode.core import checks
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.chat import MAX_TEMPLATE, ChatTemplate, find_template
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


def with_chat(checkpoint: Checkpoint, sources: Mapping[str, str]) -> Checkpoint:
    """Return the model with its chat template; the token that ends an answer then ends its texts.

    Warnings say what the files leave unclear.

    Args:
        sources: name -> Jinja text of all templates.
    """
    tokenizer, config = checkpoint.tokenizer, checkpoint.config
    template = find_template(sources, tokenizer)
    if template is None:
        return checkpoint
    doubts = []
    try:
        template.render([{"role": "user", "content": "a"}])
        marks = template.marks(tokenizer)
        if marks.end is not None:
            config = replace(config, eos_tokens=tuple(sorted({*config.eos_tokens, marks.end})))
        if marks.plain:
            doubts.append(
                f"the chat template marks turns with plain words ({marks.plain[:80]!r}), so a "
                "message that contains these words reads as another turn"
            )
        elif marks.plain is not None:
            doubts.append("the chat template puts nothing between turns, so they read as one text")
    except (InvalidInput, InvalidModel) as error:
        doubts.append(f"the chat template cannot be used: {error}")
    if not config.eos_tokens:
        doubts.append("no file names a token that ends an answer, so answers go on to max_tokens")
    for doubt in doubts:
        warnings.warn(f"{config.name}: {doubt}", stacklevel=4)
    return replace(checkpoint, config=config, chat_template=template)


def with_template(checkpoint: Checkpoint, given: str) -> Checkpoint:
    """Return the model with another chat template.

    Args:
        given: Jinja text, the name of one of the model's templates, or a file. A text without
            braces is not taken for a template.

    Raises:
        InvalidInput: there is no such template or file.
    """
    template = checkpoint.chat_template
    if template is not None and given in template.named:
        sources = {**template.sources, "default": template.named[given].source}
    elif "{" in given:
        sources = {"default": given}
    else:
        sources = {"default": checks.text_in(Path(given), "chat_template", MAX_TEMPLATE)}
    return with_chat(checkpoint, sources)
