"""Errors that a user can act on: each names the field, the value and the fix."""

from __future__ import annotations


class ParadecodeError(Exception):
    """Base class of every error that Paradecode raises on purpose."""


class InvalidInput(ParadecodeError, ValueError):
    """A value from outside (request, configuration, model file) that cannot be used.

    Args:
        field: dotted name of the offending field, as the user wrote it.
        value: the offending value; shortened in the message.
        fix: what would be accepted, as an imperative sentence.
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        try:
            shown = repr(value)
        except (ValueError, RecursionError):  # Thousands of digits, or of nested lists.
            shown = f"this {type(value).__name__}"
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field}: {shown} is not usable; {fix}")
        self.field, self.value, self.fix = field, value, fix


class InvalidModel(InvalidInput):
    """A model file or folder that is damaged, truncated or of an unknown kind."""


class DecoderError(ParadecodeError):
    """A decoder broke the rules of the engine (bad tree, bad slot, no progress)."""


class BackendError(ParadecodeError):
    """A forward failed or returned unusable numbers."""


class BackendLost(BackendError):
    """A backend that can never run again: the model must be loaded anew."""


class CapacityError(ParadecodeError):
    """A resource with a fixed size (KV pages, queue) cannot take the request."""
