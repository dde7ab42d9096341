"""What a certificate is about, and how much of it is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paradecode.core.decoder import Decoder, Guarantee
from paradecode.core.errors import InvalidInput
from paradecode.methods.registry import Spec

Progress = Callable[[str, int, int], None]
"""Told the name of the check, and how much of it is done, of how much."""


@dataclass(frozen=True)
class Subject:
    """The decoder that is certified.

    Attributes:
        name: what users write.
        make: builds the decoder of one request.
        guarantee: what it promises.
        drafts: it is meant to draft, so a certificate without verified drafts says nothing.
    """

    name: str
    make: Callable[[], Decoder]
    guarantee: Guarantee
    drafts: bool = True

    @classmethod
    def of(cls, spec: Spec) -> Subject:
        """The subject of a registered method with its settings.

        Raises:
            InvalidInput: for a method that is not autoregressive.
        """
        if spec.method.family != "autoregressive":
            raise InvalidInput("decoder", str(spec), "give an autoregressive method")
        drafts = any(p.name == "num_speculative_tokens" for p in spec.method.parameters)
        return cls(str(spec), spec, spec.guarantee, drafts)


@dataclass(frozen=True)
class Text:
    """A prompt: its name, and its token ids."""

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Settings of a certificate.

    Attributes:
        max_tokens: length of the outputs that are compared.
        temperature: of the sampled half; 0 leaves that half out.
        seed: of all seeds.
        samples: requests at each place where the law is tested.
        places: how many places.
        keep_going: go on after the first difference.
        allow_near_ties: differences that rounding explains do not fail the certificate.

    Raises:
        InvalidInput: on construction, if a number is out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.8
    seed: int = 0
    samples: int = 1000
    places: int = 6
    keep_going: bool = False
    allow_near_ties: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_tokens", 1, 4096),
            ("seed", 0, (1 << 63) - 1),
            ("samples", 100, 1_000_000),
            ("places", 1, 64),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidInput(name, value, f"give a whole number from {low} to {high}")
        number = isinstance(self.temperature, (int, float))
        if not number or not 0.0 <= self.temperature <= 100.0:  # False for NaN, too.
            raise InvalidInput("temperature", self.temperature, "give a number from 0 to 100")

    def check(self, subject: Subject) -> None:
        """Raise InvalidInput if the subject's promise cannot be tested with these settings."""
        if subject.guarantee == "distribution" and self.temperature == 0.0:
            raise InvalidInput(
                "temperature", 0, "give one above 0: the method promises a distribution"
            )
