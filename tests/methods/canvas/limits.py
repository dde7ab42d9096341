"""Pairs of specs that must decode equally, because at some settings a method is another one.

All pairs are for canvases of 24 positions behind a prompt of a multiple of 8 tokens. So blocks of 8
are whole also for models with blocks of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from canvases import run, run_all, steps

from paradecode.backends.interface import Backend
from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import CanvasStep
from paradecode.engine.sequence import LiveSequence
from paradecode.models.config import ModelConfig
from paradecode.testing.trained_parts import constant_filter, joint_layer

LENGTH = 24
"""The number of positions of a canvas."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model, and a prompt for it.

    Attributes:
        bits: whether a row's sums do not depend on what else is computed, so that confidences of
            equal canvases are equal to the last bit.
        known: spec -> its decoded request; other methods are compared with these.
    """

    backend: Backend
    prompt: Sequence[int]
    bits: bool = True
    known: dict[str, LiveSequence] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return self.backend.config

    def run(self, spec: str, **params: object) -> LiveSequence:
        return run(self.backend, spec, self.prompt, LENGTH, **{"seed": 1, **params})

    def canvases(self, sequence: LiveSequence) -> list[CanvasStep]:
        """Return what each forward decided, with confidences only where they are exact."""
        if self.bits:
            return steps(sequence)
        return [replace(step, confidences=()) for step in steps(sequence)]

    def run_all(self, specs: Sequence[str]) -> list[LiveSequence]:
        """Run several specs side by side, which is faster, and return their requests."""
        params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, seed=1)
        made = run_all(self.backend, [(spec, self.prompt, params) for spec in specs])
        for spec, sequence in zip(specs, made, strict=True):
            assert sequence.error is None, (spec, sequence.error)
        return made

    def plain(self, spec: str) -> LiveSequence:
        return self.plain_all([spec])[0]

    def plain_all(self, specs: Sequence[str]) -> list[LiveSequence]:
        new = [*dict.fromkeys(spec for spec in specs if spec not in self.known)]
        self.known.update(zip(new, self.run_all(new), strict=True))
        return [self.known[spec] for spec in specs]


class Limit(NamedTuple):
    """Says that the specs ``one`` and ``other`` decode equally.

    Attributes:
        same: what is equal, from "output" alone to "rows" (see ``agree``).
        models: "any"; "full": where every row sees all others; "free": those without blocks of
            their own; "unshifted": all but those that see everything and shift.
    """

    one: str
    other: str
    same: str = "steps"
    models: str = "any"


def agree(limits: Iterable[Limit], model: Model) -> None:
    """Run both sides of each limit that holds for the model, and compare them.

    Each value of ``same`` names what must be equal:

    - "output": the tokens;
    - "forwards": the tokens and the number of forwards;
    - "decisions": the same, and which positions each step decides;
    - "canvases": the tokens and all of each deciding step, but not the number of forwards;
    - "steps": everything of "canvases" and the number of forwards;
    - "rows": everything of "steps" and the number of computed rows.
    """
    chosen = [limit for limit in limits if applies(limit, model)]
    ones = model.run_all([limit.one for limit in chosen])
    others = model.plain_all([limit.other for limit in chosen])
    for limit, one, other in zip(chosen, ones, others, strict=True):
        _compare(limit, one, other, model)


def _compare(limit: Limit, one: LiveSequence, other: LiveSequence, model: Model) -> None:
    assert one.output == other.output, limit
    if limit.same == "output":
        return
    if limit.same != "canvases":
        assert one.forwards == other.forwards, limit
    if limit.same == "forwards":
        return
    mine, theirs = model.canvases(one), model.canvases(other)
    assert [s.offsets for s in mine] == [s.offsets for s in theirs], limit
    if limit.same != "decisions":
        assert mine == theirs, limit
    if limit.same == "rows":
        assert one.rows == other.rows, limit


def applies(limit: Limit, model: Model) -> bool:
    """Return whether the limit holds for such models."""
    attention = model.config.attention
    return {
        "any": True, "full": attention == "full", "free": attention != "block",
        "unshifted": attention != "full" or not model.config.shift,
    }[limit.models]  # fmt: skip


def on(base: str, **more: str) -> str:
    """Return the spec ``base`` with more settings."""
    name, _, inside = base.removesuffix(")").partition("(")
    return f"{name}({','.join(filter(None, (inside, *(f'{k}={v}' for k, v in more.items()))))})"


BASES = ("static", "threshold(threshold=0.6)", "factor", "static(score=entropy)")
WHOLE = "answer_start=0,answer_length=4096"
"""Prophet's settings whose answer is the whole output."""
NEVER = "high=1e9,middle=1e9,low=1e9"
"""Prophet's thresholds that no gap reaches, so that it never stops early."""
AT_ONCE = "high=-1e9,middle=-1e9,low=-1e9"
SPARSE = (
    "dkv(refresh=5)", "dkv_greedy(refresh=5)", "window(active=4,buffer=10,refresh=6)",
    "recap(local=2)", "delayed(refresh=6)", "elastic(window=4,threshold=0.99)",
)  # fmt: skip
"""Caches that do not compute all rows in every forward."""
FRESH = (
    "prefix(refresh=1)", "dual(refresh=1)", "dkv(refresh=1)", "dkv_greedy(refresh=1)",
    "window(active=24,buffer=24,refresh=1)", "recap(local=0)", "recap(warmup=99)",
    "delayed(refresh=1)", "elastic(threshold=1.01)",
)  # fmt: skip
"""Caches with settings at which every forward computes all rows."""
WIDE = ("elastic(window=99,track=99,threshold=-1)", "elastic(window=99,track=99,threshold=0.999)")
"""Settings at which every forward computes all rows, and some layers perhaps twice."""
ALWAYS = (*FRESH, *WIDE)
"""Caches in which no row is ever stale."""


def policies() -> Iterator[Limit]:
    """Yield policies that equal another one; the block length is 8 where none is given."""
    yield Limit("threshold(threshold=1.01)", "static")
    yield Limit("factor(factor=0)", "static")
    yield Limit("static(steps=24)", "static")
    yield Limit("static(score=low_confidence)", "static(score=confidence)")
    yield Limit("static(blocks=fixed,block_length=1048576)", "static(blocks=full)")
    yield Limit("threshold(threshold=0,block_length=8)", "static(steps=3,block_length=8)")
    for score in ("entropy", "confidence", "margin"):
        dream = f"dream(score={score},schedule=even,blocks=fixed,block_length=8)"
        yield Limit(dream, f"static(score={score},block_length=8)", "decisions")
    yield Limit("dream(alg_temp=1e-9)", "dream", "decisions")
    for off in ("radius=0", "relaxed=0.6"):
        spec = f"local-leap(threshold=0.6,{off},block_length=8)"
        yield Limit(spec, "threshold(threshold=0.6,block_length=8)")
    yield Limit("local-leap(threshold=1.01)", "static")
    exponent = "credit(exponent=1e6,block_length=8)"
    yield Limit(exponent, "threshold(threshold=0.8,block_length=8)", "output")
    for blocks in ("full", "fixed"):
        plain = f"threshold(threshold=0.6,blocks={blocks})"
        yield Limit(f"deferred(threshold=0.6,blocks={blocks})", plain)
    yield Limit("deferred(threshold=1.01,blocks=fixed,block_length=8)", "static(block_length=8)")
    yield Limit("deferred(threshold=1.01)", "static(blocks=sliding)")
    wide = "deferred(threshold=0.6,blocks=sliding(masks=24))"
    yield Limit(wide, "threshold(threshold=0.6,blocks=full)", "decisions", models="free")
    ranked = "coherent(depth=1,seek=false,block_length=8)"
    yield Limit(ranked, "static(score=entropy,block_length=8)", "decisions")
    slow = "coherent(seek=false,block_length=8)"
    yield Limit("coherent(entropy=0,block_length=8)", slow, "decisions")
    dimple = "dimple(threshold=-100,score=entropy,blocks=fixed,block_length=8)"
    yield Limit(dimple, "threshold(threshold=0,block_length=8)", "decisions")
    for nats in (0.3, 1.0):
        spec = f"threshold(score=entropy,threshold={nats},block_length=8)"
        seeking = f"coherent(depth=1,width=24,entropy={nats},block_length=8)"
        yield Limit(spec, seeking, "decisions")
    for threshold in (0.6, 1.01):
        spec = f"ete(explore=0,ahead=0,threshold={threshold},block_length=8)"
        yield Limit(spec, f"threshold(threshold={threshold},block_length=8)")
    once = f"prophet({AT_ONCE},{WHOLE},block_length=8)"
    yield Limit(once, "threshold(threshold=0,blocks=full)", "decisions", models="full")
    kept = "remask(form=paper,least={},block_length=8)"
    yield Limit(kept.format("1,limit=0"), kept.format("0,drop=1"))
    for when in ("decided", "guessed"):  # The end of a text is an ordinary token here.
        yield Limit(f"eotp(when={when},block_length=8)", "static(block_length=8)")


def wrappers() -> Iterator[Limit]:
    """Yield policies on top of another one, with settings at which they change nothing."""
    for base in BASES:
        plain = on(base, block_length="8")
        yield Limit(f"credit(weight=0,base={base},block_length=8)", plain)
        for off in ("width=0,run=0,stays=0", "sure=1.01,steady=1.01"):
            yield Limit(f"r2(base={base},{off},block_length=8)", plain)
        for off in ("least=1.01", "last=0", "least=0,share=0"):
            yield Limit(f"refine(base={base},{off},block_length=8)", plain, "decisions")
    nothing = "r2(base=threshold(threshold=0.6),width=1,gaps=0,sure=0.6,run=0,stays=0)"
    yield Limit(nothing, "threshold(threshold=0.6)")
    for base in ("static", "local_leap", "static(score=entropy)"):
        for cache in ("none", "prefix", "dual"):
            loop = {"block_length": "8", "cache": cache}
            spec = f"prophet(base={base},{NEVER},{WHOLE},block_length=8,cache={cache})"
            # With a shift a slice's forward also computes the row before what is observed.
            kind = "any" if cache == "none" else "unshifted"
            yield Limit(spec, on(base, **loop), models=kind)


def drafts() -> Iterator[Limit]:
    """Yield FreeDave's limits: it has the text and the canvases of the policy underneath."""
    yield Limit("freedave(block_length=8,draft_steps=1,eager=off)", "static(block_length=8)",
                "rows")  # fmt: skip
    settings = ((8, 3, "auto"), (4, 5, "on"), (16, 8, "off"))
    for number, blocks in enumerate(("fixed", "full", "sliding(masks=5)", "adaptive")):
        for turn, mode in enumerate(("tree", "batch")):
            length, depth, eager = settings[(number + turn) % 3]
            setting = f"blocks={blocks},block_length={length}"
            spec = f"freedave({setting},draft_steps={depth},mode={mode},eager={eager})"
            yield Limit(spec, f"static({setting})", "canvases")
    for base in ("static(score=margin)", "static(score=random)", "credit(base=static)",
                 "coherent(seek=false)", "coherent(seek=false,form=released)",
                 "dream(schedule=even)"):  # fmt: skip
        # Eager drafts would also show the policy positions behind its block.
        yield Limit(f"freedave(base={base},eager=off)", on(base, blocks="fixed"), "output")


def caches() -> Iterator[Limit]:
    """Yield caches that compute all rows, and caches with blocks that take one forward each."""
    for cache in FRESH:
        for plain in ("static(block_length=8)", "threshold(threshold=0.5,block_length=8)",
                      "static(steps=5,blocks=full)"):  # fmt: skip
            yield Limit(on(plain, cache=cache), plain, "rows", models="full")
    for cache in WIDE:
        plain = "static(block_length=8)"
        yield Limit(on(plain, cache=cache), plain, models="full")
    for cache in ("prefix", "dual"):  # Each block's first forward computes everything.
        plain = "threshold(threshold=0,block_length=8)"
        yield Limit(on(plain, cache=cache), plain, models="full")


def blocks() -> Iterator[Limit]:
    """Yield block rules whose windows equal those of another rule."""
    for policy in ("static", "static(steps=5)", "threshold(threshold=0.6)"):
        wide = on(policy, blocks="sliding(masks=24,width=24)")
        yield Limit(wide, on(policy, blocks="full"), "decisions", models="free")
        for rule in ("adaptive(ahead=0)", "adaptive(threshold=1.01)"):
            fixed = on(policy, block_length="7")
            yield Limit(on(policy, block_length="7", blocks=rule), fixed, models="free")


TABLES = (policies, wrappers, drafts, caches, blocks)


def trained(model: Model, folder: Path) -> Iterator[Limit]:
    """Yield limits of trained parts that never agree, that always agree, or that change nothing."""
    constant_filter(-40.0).save(folder / "never")
    constant_filter(40.0).save(folder / "always")
    sizes = {"vocab_size": model.config.vocab_size, "hidden_size": model.config.hidden_size}
    joint_layer(size=0.0, **sizes).save(folder / "zero")
    joint_layer(**sizes).save(folder / "other")
    for base in ("static", "threshold(threshold=0.02)"):
        spec = f"learn2pd(filter='{folder / 'never'}',base={base},block_length=8)"
        yield Limit(spec, on(base, block_length="8"))
    for length in (4, 8, 24):  # Blocks shorter and longer than those of the filter, too.
        spec = f"learn2pd(filter='{folder / 'always'}',block_length={length})"
        yield Limit(spec, f"threshold(threshold=0,block_length={length})", "decisions")
    spec = f"joint-sampler(layer='{folder / 'other'}',tokens=1,block_length=8)"
    yield Limit(spec, "static(score=entropy,block_length=8)", "decisions")
    for score in ("entropy", "confidence", "random"):
        for tokens in (2, 4):
            spec = f"joint-sampler(layer='{folder / 'zero'}',tokens={tokens},score={score}"
            plain = f"static(score={score},steps={LENGTH // tokens},block_length=8)"
            # Elsewhere the schedule of a model's own blocks is another one.
            yield Limit(f"{spec},block_length=8)", plain, "forwards", "full")
