"""The plan of a certificate: the claim, the prompts, and how much is tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paradecode.core.checks import attributes, number, whole
from paradecode.core.decoder import Decoder, Guarantee
from paradecode.core.errors import InvalidInput
from paradecode.engine.engine import Engine
from paradecode.methods.specs import Spec
from paradecode_lab.measure.prompts import Conversation, by_turns, load_prompts

Progress = Callable[[str, int, int], None]
"""Called with a check's name, the number of its finished steps, and the number of all steps."""
CHECKS = {
    "max_tokens": whole(1, 4096),
    "temperature": number(0.0, 100.0),
    "seed": whole(0, (1 << 63) - 1),
    "samples": whole(100, 1_000_000),
    "places": whole(1, 64),
}
COUNT = 24
"""Number of the package's prompts that are used if no number is given."""


@dataclass(frozen=True)
class Claim:
    """A decoder and the promise to test; ``make`` builds the decoder of one request.

    If ``drafts`` is true, the decoder must draft: a certificate without verified drafts proves
    nothing.
    """

    name: str
    make: Callable[[], Decoder]
    guarantee: Guarantee
    drafts: bool = True

    @classmethod
    def of(cls, spec: Spec) -> Claim:
        """Build the claim of a registered method with its settings.

        Raises:
            InvalidInput: the method is not autoregressive.
        """
        if spec.method.family != "autoregressive":
            raise InvalidInput("decoder", str(spec), "give an autoregressive method")
        drafts = any(p.name == "num_speculative_tokens" for p in spec.method.parameters)
        return cls(str(spec), spec, spec.guarantee, drafts)


@dataclass(frozen=True)
class CertificatePlan:
    """The tests of a certificate, and their sizes.

    Attributes:
        max_tokens: the most tokens of the outputs that are compared.
        temperature: temperature of the sampled requests; 0 leaves these requests out.
        samples: number of requests at each of the ``places`` where the law is tested.
        keep_going: whether the test goes on after the first difference.
        allow_near_ties: whether a difference that rounding explains counts as no failure.

    Raises:
        InvalidInput: a number is out of range (on construction).
    """

    max_tokens: int = 64
    temperature: float = 0.8
    seed: int = 0
    samples: int = 1000
    places: int = 6
    keep_going: bool = False
    allow_near_ties: bool = False

    def __post_init__(self) -> None:
        attributes(self, CHECKS)

    def check(self, claim: Claim) -> None:
        """Check that the promise can be tested with these settings.

        Raises:
            InvalidInput: a distribution is promised, and the temperature is 0.
        """
        if claim.guarantee == "distribution" and self.temperature == 0.0:
            fix = "give one above 0: the method promises a distribution"
            raise InvalidInput("temperature", 0, fix)


@dataclass(frozen=True)
class Trial:
    """The arguments that all checks share: engine, claim, plan, and progress function."""

    engine: Engine
    claim: Claim
    plan: CertificatePlan
    progress: Progress = lambda stage, done, total: None

    def counter(self, stage: str, total: int) -> Callable[[], None]:
        """Return a function that must be called each time that one of ``total`` steps is done."""
        done = 0
        self.progress(stage, 0, total)

        def tick() -> None:
            nonlocal done
            done += 1
            self.progress(stage, done, total)

        return tick


def choose_prompts(path: Path | None = None, count: int | None = None) -> list[Conversation]:
    """Choose prompts that are spread over their groups.

    Args:
        path: a file for :func:`paradecode_lab.measure.prompts.load_prompts`; None takes the
            package's file.
        count: number of prompts; None takes all prompts of a file, or 24 prompts of the package's
            file.

    Raises:
        InvalidInput: a field cannot be used; the error names it.
    """
    if count is not None and count < 1:
        raise InvalidInput("count", count, "give at least 1")
    prompts = load_prompts(path)
    if count is None:
        count = COUNT if path is None else len(prompts)
    return by_turns(prompts)[:count]
