"""Open the engine of a model, with the small model that drafts for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike, fspath

from paradecode.backends.drafting import DraftPlace
from paradecode.backends.interface import Backend
from paradecode.core.decoder import DRAFT, TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.engine import Engine, Limits
from paradecode.methods.choice import check_draft_model
from paradecode.methods.draft.ngram_table import said_tokens
from paradecode.methods.specs import Spec
from paradecode.models.catalogue import open_model
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.vocabulary import match, trim


@dataclass(frozen=True)
class Drafting:
    """The settings of the draft model or draft head.

    Attributes:
        model: name of the draft model, or None.
        vocabulary: an n-gram table, or None. The draft model may propose only the table's tokens.
        place: where the draft model and draft heads run.
    """

    model: str | None
    vocabulary: str | None
    place: DraftPlace


def drafting_with(
    decoder: Spec | str | None,
    model: str | PathLike[str] | None,
    vocabulary: str | PathLike[str] | None,
    place: DraftPlace,
) -> Drafting:
    """Return the drafting settings for a method; ``model`` or the method names the draft model.

    Raises:
        InvalidInput: the method needs a draft model and none is named, or a ``vocabulary`` is given
            without a draft model.
    """
    name = None if model is None else fspath(model)
    if isinstance(decoder, Spec):
        name = name or decoder.draft_model
        check_draft_model(decoder, name)
    table = None if vocabulary is None else fspath(vocabulary)
    if table is not None and name is None:
        raise InvalidInput("draft_vocabulary", table, "name a draft_model, which it is for")
    return Drafting(name, table, place)


def open_engine(
    checkpoint: Checkpoint,
    drafting: Drafting,
    opens: Callable[..., Backend],
    threads: int | None,
    ranks: int,
    limits: Limits,
) -> Engine:
    """Load a model and its draft model into an engine, which measures their forwards' costs.

    Args:
        opens: :func:`paradecode.backends.open_backend` with all arguments except the model and its
            ``threads`` and ``ranks``.
        threads: CPU threads of the target; None leaves it to the backend.

    Raises:
        InvalidInput: settings do not fit the model or this machine.
        InvalidModel: a model cannot be loaded.
    """
    place, config, weights = drafting.place, checkpoint.config, checkpoint.weights
    if drafting.model is not None:
        threads = place.left(threads)
    target = opens(config, weights, threads=threads, ranks=ranks)
    models, vocabularies = {TARGET: target}, dict[str, Vocabulary]()
    heads = place.open_heads(target, threads)
    if drafting.model is not None:
        draft = _open_draft(drafting.model)
        sizes = config.vocab_size, draft.config.vocab_size
        matched = match(checkpoint.tokenizer, draft.tokenizer, *sizes)
        if drafting.vocabulary is not None:
            draft, matched = trim(draft, matched, said_tokens(drafting.vocabulary, sizes[0]))
        if matched is not None:
            vocabularies[DRAFT] = matched
        models[DRAFT] = place.open_model(draft.config, draft.weights, threads, opens)
    return Engine(
        models, limits, checkpoint.tokenizer.stream, vocabularies=vocabularies, weights=weights,
        heads=heads, apart=place.apart, measured=True,
    )  # fmt: skip


def _open_draft(name: str) -> Checkpoint:
    """Open a draft model; errors about its name say that it is the draft model's."""
    try:
        return open_model(name)
    except InvalidInput as error:
        field = "draft_model" if error.field == "model" else error.field
        raise type(error)(field, error.value, error.fix) from None
