"""The conformance suite, which tests every promise that a decoding method makes.

    from paradecode.testing.conformance import check
    check("prompt-lookup(max_ngram=4)")          # a registered method
    check(MyDecoder)                             # anything that makes a decoder

A method that promises ``exact`` must give, token by token, what plain decoding gives, in any batch,
with any neighbours, prompt chunks, cached prefixes, penalties, stops and seeds. The others must
keep the structural promises: bounds, stops, counts, and every page given back.

Whether a method saves forwards is another question, and says nothing about its correctness:

    print(useful("prompt-lookup"))

In pytest, parametrise over :func:`cases` to see each case by name:

    @pytest.mark.parametrize("case", cases("prompt-lookup"), ids=str)
    def test_method(case):
        case.run()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradecode.core.decoder import Guarantee
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import MAX_TOKENS
from paradecode.methods.parts import Method
from paradecode.methods.specs import Spec, methods, parse
from paradecode.testing.cases import CASES, repetitive
from paradecode.testing.harness import Bench, ConformanceFailure, DecoderFactory, Run, Subject
from paradecode.testing.machines import KINDS, BackendFactory, Kind, oracle_backends

__all__ = [
    "FEWEST", "ConformanceCase", "ConformanceFailure", "Gain",
    "cases", "check", "specs", "useful", "with_parts",
]  # fmt: skip

FEWEST = 10
"""Number of accepted draft tokens below which equal outputs prove nothing about a method.

A method that drafts nothing is plain decoding, and always equals it.
"""
_BENCHES: dict[tuple[Kind, BackendFactory], Bench] = {}


@dataclass(frozen=True)
class ConformanceCase:
    """One case for one method on one model."""

    name: str
    kind: Kind
    subject: Subject
    factory: BackendFactory = field(repr=False)

    def __str__(self) -> str:
        return f"{self.subject.name}-{self.kind.name}-{self.name}"

    def run(self) -> None:
        """Raise ConformanceFailure unless the method passes the case."""
        CASES[self.name](Run(self.name, self.subject, _bench(self.kind, self.factory)))


def check(
    spec: str | Spec | DecoderFactory,
    backend_factory: BackendFactory = oracle_backends,
    **chosen: Any,
) -> None:
    """Run a method through the cases that :func:`cases` returns for these arguments.

    Raises:
        ConformanceFailure: naming the case, the request, and the first wrong token.
    """
    for each in cases(spec, backend_factory, **chosen):
        each.run()


def cases(
    spec: str | Spec | DecoderFactory,
    backend_factory: BackendFactory = oracle_backends,
    *,
    guarantee: Guarantee = "exact",
    family: str = "autoregressive",
    kinds: Sequence[str] | None = None,
    only: Iterable[str] | None = None,
) -> list[ConformanceCase]:
    """Return the cases of a method.

    Args:
        spec: a registered method with its settings, or a function that returns a decoder.
        backend_factory: returns the models; by default the toy, and torch in fp64.
        guarantee, family: guarantee and family of a decoder that is not registered.
        kinds, only: names of the models, and of the cases, to use; all by default.

    Raises:
        InvalidInput: if a name of a model or of a case is unknown.
    """
    subject, family = _subject(spec, guarantee, family)
    models = {kind.name: kind for kind in KINDS}
    names = list(CASES if only is None else only)
    for name in (*names, *(kinds or ())):
        if name not in CASES and name not in models:
            raise InvalidInput("case or kind", name, f"use one of {', '.join([*CASES, *models])}")
    chosen = [kind for kind in KINDS if kind.family == family and kind.name in (kinds or models)]
    return [
        ConformanceCase(name, kind, subject, backend_factory) for kind in chosen for name in names
    ]


@dataclass(frozen=True)
class Gain:
    """The saving of a method on repetitive texts: ``generated`` tokens took ``forwards`` forwards.

    Attributes:
        accepted: number of accepted draft tokens.
    """

    accepted: int
    forwards: int
    generated: int

    def __bool__(self) -> bool:
        """Return whether the method drafts well enough to save forwards."""
        return self.accepted >= FEWEST and self.forwards < self.generated

    def __str__(self) -> str:
        return (
            f"{'useful' if self else 'no gain'}: {self.accepted} draft tokens accepted, "
            f"{self.forwards} forwards for {self.generated} tokens"
        )


def useful(
    spec: str | Spec | DecoderFactory, backend_factory: BackendFactory = oracle_backends
) -> Gain:
    """Decode repetitive texts of the toy, greedily and at temperature 1.5; see :class:`Gain`.

    The result is the same on every machine, so it changes if a drafter becomes worse.

    Raises:
        ConformanceFailure: if the method broke a promise meanwhile.
    """
    subject, _ = _subject(spec, "exact", "autoregressive")
    run = Run("repetitive", subject, _bench(KINDS[0], backend_factory))
    stats = [sequence.stats for sequence in repetitive(run)]
    return Gain(
        sum(each.accepted for each in stats),
        sum(each.forwards for each in stats),
        sum(each.generated for each in stats),
    )


def specs(names: Iterable[str] | None = None) -> list[Spec]:
    """Return specs of every registered method that runs without training.

    Extremes have all numbers at their lowest, or all at their highest. For autoregressive methods,
    there is also a spec for each value of a text setting.
    """
    found = []
    for name in sorted(methods() if names is None else names):
        method = methods()[name]
        if method.training == "none":
            found += _extremes(method)
    return found


def with_parts(name: str) -> list[Spec]:
    """Return specs of a draft-and-verify method with every budget, and with every verifier."""
    chosen = [p for p in methods()[name].parameters if p.kind in ("budget", "verifier")]
    return [parse({"method": name, p.name: part}) for p in chosen for part in p.options]


def _extremes(method: Method) -> list[Spec]:
    numbers = [p for p in method.parameters if not isinstance(p.default, (bool, str))]
    wanted: list[dict[str, Any]] = [
        {},
        {p.name: type(p.default)(p.low) for p in numbers},
        {p.name: type(p.default)(p.high) for p in numbers},
        {p.name: 1 for p in numbers if p.name == "num_speculative_tokens"},
    ]
    if method.family == "autoregressive":
        wanted += [{p.name: value} for p in method.parameters for value in p.choices]
    found: dict[str, Spec] = {}
    for settings in wanted:
        try:
            spec = parse({"method": method.name, **settings})
        except InvalidInput:
            continue  # These extremes exclude each other.
        found.setdefault(str(spec), spec)
    return list(found.values())


def _subject(
    spec: str | Spec | DecoderFactory, guarantee: Guarantee, family: str
) -> tuple[Subject, str]:
    if isinstance(spec, (str, Spec)):
        known = parse(spec)
        whole = str(known.settings.get("blocks", "")).startswith("full")
        blocks = MAX_TOKENS if whole else known.settings.get("block_length", 0)
        subject = Subject(str(known), known, known.guarantee, blocks)
        return subject, known.method.family
    name = getattr(spec, "__name__", type(spec).__name__)
    return Subject(name, spec, guarantee), family


def _bench(kind: Kind, factory: BackendFactory) -> Bench:
    if (kind, factory) not in _BENCHES:
        _BENCHES[kind, factory] = Bench(kind, factory)
    return _BENCHES[kind, factory]
