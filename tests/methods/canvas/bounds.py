"""Bounds that every decoding of a method keeps: numbers of forwards, of rows, and positions."""

from collections.abc import Callable
from itertools import groupby, pairwise
from math import cos, floor, pi

from canvases import UNTRAINED, steps
from limits import AT_ONCE, LENGTH, SPARSE, WHOLE, Model, on

BLOCK = 8

Bound = Callable[[Model], None]


def forwards_of_schedules(model: Model) -> None:
    for spec, forwards in (
        ("static", LENGTH), ("static(steps=6)", 6), ("static(score=random,steps=4)", 4),
        ("threshold(threshold=0,block_length=8)", 3), ("threshold(threshold=0,blocks=full)", 1),
        ("coherent(seek=false)", LENGTH), ("dream(schedule=even)", LENGTH),
        (f"prophet({AT_ONCE},{WHOLE})", 1), ("r2(stays=1,steady=0,block_length=8)", 3),
        ("ete(threshold=0,explore=0,ahead=0,block_length=8)", 3),
        ("local-leap(threshold=0,block_length=8)", 3),
    ):  # fmt: skip
        assert model.plain(spec).forwards == forwards, spec


def never_more_forwards_than_masks(model: Model) -> None:
    """Every policy decides each position, and again only if it was revoked.

    It takes at most one forward for each mask.
    """
    # These look at decided blocks again, and run each canvas twice.
    own = {"edit": "after=0,", "guided": "scale=0,"}
    specs = [
        f"{name}({own.get(name, '')}blocks={rule},block_length={BLOCK})"
        for name in UNTRAINED
        for rule in ("fixed", "full", "sliding")
    ]
    for spec, made in zip(specs, model.run_all(specs), strict=True):
        assert made.forwards <= LENGTH, spec
        decided = [at for step in steps(made) for at in step.offsets]
        revoked = [at for step in steps(made) for at in step.revoked]
        assert sorted(decided) == sorted([*range(LENGTH), *revoked]), spec
        assert model.config.mask_token not in made.output


def schedules_are_bounds(model: Model) -> None:
    names = ("dimple(threshold=1)", "dream", "dream(score=origin)", "remask")
    for limit in (1, 5, 12, 24):
        found = model.run_all([on(name, steps=str(limit), blocks="full") for name in names])
        for name, made in zip(names, found, strict=True):
            assert made.forwards <= limit, name
            assert name == "remask" or all(step.offsets for step in steps(made)), name


def narrow_blocks_go_left_to_right(model: Model) -> None:
    for spec in ("static(block_length=1)", "static(blocks=sliding(masks=1))"):
        assert [step.offsets for step in steps(model.run(spec))] == [(n,) for n in range(LENGTH)]


def adaptive_blocks_tile_the_canvas(model: Model) -> None:
    delimiters = " ".join(map(str, sorted(set(model.plain("static").output))))
    for ahead in (0.1, 0.25, 1.0):
        rule = f"adaptive(threshold=0.2,ahead={ahead},delimiters='{delimiters}')"
        made = model.run(f"threshold(threshold=0.5,block_length=5,blocks={rule})")
        windows = list(dict.fromkeys(step.window for step in steps(made)))
        assert windows[0][0] == 0
        assert windows[-1][1] == LENGTH
        assert all(a[1] == b[0] for a, b in pairwise(windows))
        assert all(1 <= end - start <= max(5, int(ahead * LENGTH)) for start, end in windows)


def thresholds_commit_what_reaches_them_and_always_the_best(model: Model) -> None:
    for tau in (0.0, 0.2, 0.5, 0.9):
        for step in steps(model.run(f"threshold(threshold={tau})")):
            sure = [c for c in step.confidences if c >= tau]
            assert sure == list(step.confidences) or len(step.offsets) == 1


def factors_bound_the_doubt(model: Model) -> None:
    for factor in (0.5, 1.0, 2.0):
        for step in steps(model.run(f"factor(factor={factor})")):
            sure = sorted(step.confidences, reverse=True)
            assert all((1 - c) * (n + 1) <= factor for n, c in enumerate(sure[1:], 2))


def prophet_is_its_base_until_it_leaves(model: Model) -> None:
    for gap in (0.5, 2.0, 4.0, 5.5, 12.0):
        plain = model.plain(f"static(block_length={BLOCK})")
        gaps = f"high={gap},middle={gap},low={gap}"
        made = model.run(f"prophet(block_length={BLOCK},{gaps},{WHOLE})")
        assert made.forwards <= plain.forwards
        before = len(made.trace) - 1
        assert model.canvases(made)[:before] == model.canvases(plain)[:before]
        known = sum(len(step.offsets) for step in steps(plain)[:before])
        assert len(steps(made)[-1].offsets) == LENGTH - known


def drafts_are_never_more_forwards(model: Model) -> None:
    depths, lengths = (2, 4, 8), (4, 8, 24)
    plain = model.plain_all([f"static(block_length={length})" for length in lengths])
    for depth in depths:
        specs = [f"freedave(block_length={length},draft_steps={depth})" for length in lengths]
        for made, slow in zip(model.run_all(specs), plain, strict=True):
            assert made.forwards <= slow.forwards


def masks_follow_the_cosine(model: Model) -> None:
    for rounds in (1, 2, 6, 12):
        left = [floor(LENGTH * cos(pi / 2 * (i + 1) / rounds)) for i in range(rounds)]
        planned = [min(max(n, 1), LENGTH - 1) for n in left[:-1]] + [0]
        for form in ("form=released", "form=paper,least=0,drop=1"):
            made = model.run(f"remask({form},blocks=full,steps={rounds})")
            found, masks = [], LENGTH
            for step in steps(made):
                masks += len(step.revoked) - len(step.offsets)
                found.append(masks)
            # A round that would change nothing is not run.
            assert [n for n, _ in groupby(found)] == [n for n, _ in groupby(planned)]
            assert made.forwards <= rounds
            assert rounds == 12 or made.forwards == rounds


def corrections_keep_the_number_of_masks(model: Model) -> None:
    made, text = model.run(f"refine(least=0,block_length={BLOCK})"), dict[int, int]()
    assert made.forwards == LENGTH
    for step in steps(made):
        assert len(step.offsets) - len(step.revoked) == 1
        assert set(step.revoked) <= set(text)
        new = dict(zip(step.offsets, step.tokens, strict=True))
        assert all(text[at] != new[at] for at in step.revoked)
        text |= new
    assert made.output == [text[at] for at in range(LENGTH)]


def a_sliding_window_stays_narrow(model: Model) -> None:
    for masks, width in ((16, 128), (5, 9), (3, 3), (1, 1), (8, 4)):
        blocks = f"sliding(masks={masks},width={width})"
        decided: set[int] = set()
        for step in steps(model.run(f"threshold(threshold=0.5,blocks={blocks})")):
            start, end = step.window
            assert start == min(set(range(LENGTH)) - decided)
            assert 0 < end - start <= width
            assert len(set(range(start, end)) - decided) <= masks
            assert all(start <= at < end for at in step.offsets)
            decided |= set(step.offsets)


def rows_of_blocks(model: Model) -> None:
    """The prefix cache computes the rows from the block's start on, the dual cache the block's."""
    start = len(model.prompt)
    whole = start + LENGTH
    prefix = sum(whole + (BLOCK - 1) * (whole - start - BLOCK * k) for k in range(3))
    rows = {
        cache: model.plain(f"static(block_length={BLOCK},cache={cache})").rows
        for cache in ("none", "prefix", "dual")
    }
    dual = 3 * (whole + (BLOCK - 1) * BLOCK)
    if model.config.shift:  # The row to the left of the block as well, unless that is decided.
        assert dual < rows["dual"] <= dual + 3 * (BLOCK - 1)
    else:
        assert rows == {"none": LENGTH * whole, "prefix": prefix, "dual": dual}


def caches_save_rows(model: Model) -> None:
    plain = model.plain(f"static(block_length={BLOCK})")
    final = model.config.attention != "full"  # What a finished block holds.
    names = ("prefix", "dual", *SPARSE, *(["two_level"] if final else []))
    specs = [f"static(block_length={BLOCK},cache={cache})" for cache in names]
    for made in model.run_all(specs):
        assert made.forwards == plain.forwards
        assert made.rows < plain.rows
        if final:
            assert made.output == plain.output


ANY: tuple[Bound, ...] = (
    thresholds_commit_what_reaches_them_and_always_the_best, factors_bound_the_doubt,
    drafts_are_never_more_forwards, prophet_is_its_base_until_it_leaves,
    corrections_keep_the_number_of_masks, a_sliding_window_stays_narrow, caches_save_rows,
)  # fmt: skip
"""Bounds that hold for all models."""
FREE: tuple[Bound, ...] = (
    *ANY, forwards_of_schedules, never_more_forwards_than_masks, schedules_are_bounds,
    narrow_blocks_go_left_to_right, adaptive_blocks_tile_the_canvas,
    masks_follow_the_cosine,
)  # fmt: skip
"""Bounds that hold for models without blocks of their own."""
FULL: tuple[Bound, ...] = (*FREE, rows_of_blocks)
"""Bounds that hold for models in which every row sees all others."""


def bounds_of(model: Model) -> tuple[Bound, ...]:
    """Return the bounds that hold for models of this kind."""
    if model.config.attention == "full":
        return FULL
    return ANY if model.config.attention == "block" else FREE
