"""Makes sheets of benchmark results: decoders in one engine, or several engines side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from paradecode.methods.specs import parse
from paradecode.timing.doubts import BUSY, SUSPICIOUS, marked
from paradecode_lab.measure.figures import Figures, TokenCost, figures, usual_baseline
from paradecode_lab.measure.results import Results, groups_of
from paradecode_lab.measure.sheet import PLAIN, STANDINGS, Line, Sheet, Tile
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tables import Column, cells, heads, number, spread, value
from paradecode_lab.measure.too_short import ENOUGH_OF_A_GROUP, too_short

OWN = "paradecode"


def sheet_of_results(results: Results, baseline: str | None) -> Sheet:
    """Make the sheet with the tables and charts of a result.

    Args:
        baseline: the engine that ratios refer to; None takes the plain mode that all refer to, if
            there is only one.
    """
    measured = {record.engine for record in results.records if not record.error}
    baseline = baseline if baseline in measured else usual_baseline(results)
    found = figures(results, baseline)
    decoders = all(each.engine.guarantee for each in found)
    best = _best_modes(found)
    head = heads(DECODERS if decoders else ENGINES)
    lines = tuple(_line(each, decoders, baseline, each.name in best) for each in found)
    if decoders and not _is_plain(found, baseline):
        head = tuple(name.replace("plain", baseline or "plain") for name in head)
    return Sheet(
        title=("Decoders on " if decoders else "Engines on ") + results.model,
        lines=lines,
        conditions=_conditions(results),
        tiles=_decoder_tiles(found, baseline) if decoders else _engine_tiles(found, baseline),
        baseline=baseline or "",
        quality_label=_quality_label(found, decoders),
        groups_over=decoders,
        head=tuple(name.replace("baseline", baseline or "baseline") for name in head),
        notes=_notes(results, found, decoders),
        doubts=_doubts(found, baseline),
    )


def _line(each: Figures, decoders: bool, baseline: str | None, is_best: bool) -> Line:
    engine, total, cost = each.engine, each.total, each.cost
    groups = {
        name: chosen
        for name, speed in each.groups.items()
        if speed.prompts >= ENOUGH_OF_A_GROUP or not decoders
        if (chosen := speed.speedup if decoders else speed.decode) is not None
    }
    is_plain = engine.mode == "plain"
    return Line(
        name=each.name,
        family=_family(each, decoders),
        standing="" if is_plain and each.verdict != "broken" else each.verdict,
        badge=_badge(each),
        speed=total.decode,
        over=total.speedup if baseline else None,
        quality=_quality(each, decoders),
        groups=groups,
        acceptance=cost.per_position if cost else (),
        split=cost.milliseconds if cost and any(cost.milliseconds.values()) else {},
        sweep={size: through.speed for size, through in each.sweep.items()},
        sweep_over={size: t.over for size, t in each.sweep.items() if t.over is not None},
        cells=cells(DECODERS if decoders else ENGINES, each),
        charted=decoders or is_best,
        muted=is_plain,
    )


def _family(each: Figures, decoders: bool) -> str:
    engine = each.engine
    if not decoders:
        return OWN if engine.peer.startswith(OWN) else engine.peer
    return PLAIN if engine.mode == "plain" else parse(each.name).method.name


def _best_modes(found: Sequence[Figures]) -> set[str]:
    """Return the names of the fastest mode of each peer, and of this package's plain mode."""
    best: dict[str, Figures] = {}
    for each in found:
        peer = _family(each, False)
        if peer not in best or _decode(each) > _decode(best[peer]):
            best[peer] = each
    chosen = {each.name for each in best.values()}
    own = best.get(OWN)
    return chosen | ({own.engine.reference or ""} if own else set())


def _badge(each: Figures) -> str:
    equal, engine = each.equality, each.engine
    if engine.mode == "plain" and each.verdict != "broken":
        return "plain decoding"
    if equal is None:
        return ""
    counted = f"{equal.same}/{equal.outputs}"
    if each.verdict == "exact":
        return f"exact {counted}"
    if each.verdict == "broken":
        return f"differs from plain: {equal.outputs - equal.same} of {equal.outputs}"
    if each.verdict == "law":
        return "same distribution"
    kept = f", {100 * equal.kept.value:.0f} % of tokens kept" if equal.kept else ""
    return f"lossy: {counted} as plain{kept}" if each.verdict else f"as its plain mode {counted}"


def _quality(each: Figures, decoders: bool) -> Interval | None:
    """Return the quality of a line; None if it was not or cannot be measured.

    If an output only has plain decoding's distribution, it cannot be measured: its tokens differ,
    and a sampled token need not be the argmax.
    """
    if each.verdict == "law":
        return None
    equal = each.equality
    return each.own_choice or (equal.kept if equal and decoders else None)


def _quality_label(found: Sequence[Figures], decoders: bool) -> str:
    if any(each.own_choice for each in found):
        whose = "the model's own choice" if decoders else "the choice of the weights in float32"
        return f"Share of output tokens that are {whose}"
    return "Share of output tokens before the first difference from plain" if decoders else ""


def _same(each: Figures) -> str:
    equal = each.equality
    return f"{equal.same}/{equal.outputs}" if equal and each.engine.reference else ""


def _first_difference(each: Figures) -> str:
    """Return the median index of the first token that differs from the plain mode's.

    Only outputs that differ count.
    """
    lossless = each.lossless
    places = lossless.first_differences if lossless else ()
    return f"{median(places):.0f}" if places else ""


def _right(each: Figures) -> str:
    return f"{each.accuracy.right}/{each.accuracy.checked}" if each.accuracy else ""


def _cost(cell: Callable[[TokenCost], str]) -> Callable[[Figures], str]:
    """Make a cell about costs, which is empty for an engine that does not report them."""
    return lambda each: cell(each.cost) if each.cost else ""


def _known(found: float | None, form: str) -> str:
    return "" if found is None else form.format(found)


SPEED: Column[Figures] = Column("tokens/s", lambda e: spread(e.total.decode))
FORWARDS: Column[Figures] = Column("tokens/forward", _cost(lambda c: number(c.per_forward)))
CHOICE: Column[Figures] = Column("own choice", lambda e: _percent(e.own_choice))
DECODERS: tuple[Column[Figures], ...] = (
    Column("output", _badge),
    SPEED,
    Column("× plain", lambda e: marked(spread(e.total.speedup), e.suspicious)),
    FORWARDS,
    Column("acceptance length", _cost(lambda c: spread(c.acceptance_length, absent=""))),
    Column("draft forwards/token", _cost(lambda c: number(n) if (n := c.draft_forwards) else "")),
    CHOICE,
    Column("NLL gap", lambda e: _signed(e.nll_gap)),
    Column("right answers", _right),
)
ENGINES: tuple[Column[Figures], ...] = (
    Column("same as plain", _same),
    Column("first difference", _first_difference),
    SPEED,
    Column("× baseline", lambda e: spread(e.total.speedup)),
    FORWARDS,
    Column("with prompt", lambda e: value(e.total.overall, absent="")),
    Column("prompt tokens/s", lambda e: value(e.total.prefill, absent="")),
    Column("first token ms", lambda e: value(e.total.first_token, 1000, "")),
    Column("peak MB", lambda e: _known((e.engine.peak_bytes or 0) / 1e6 or None, "{:.0f}")),
    Column("load s", lambda e: _known(e.engine.load_seconds, "{:.1f}")),
    Column("NLL/token", lambda e: _known(e.nll, "{:.4f}")),
    CHOICE,
)


def _decoder_tiles(found: Sequence[Figures], baseline: str | None) -> tuple[Tile, ...]:
    base = next((each for each in found if each.name == baseline), None)
    called = "plain decoding" if _is_plain(found, baseline) else baseline
    exact = [e for e in found if e.verdict == "exact" and e.name != baseline and _over(e)]
    broken = [each for each in found if each.verdict == "broken"]
    tiles = []
    if exact:
        best = max(exact, key=_over)
        over = best.total.speedup
        assert over is not None
        tiles.append(
            Tile(f"{number(over.value)}×", f"{called}, with {best.name}",
                 f"{number(over.low)} to {number(over.high)}, same tokens")
        )  # fmt: skip
        tiles += _accepted(best)
    if base is not None and base.total.decode:
        tiles.append(Tile(number(_decode(base)), f"tokens/s, {called}"))
    promised = [e.equality for e in (*exact, *broken) if e.equality and e.name != baseline]
    same, all_ = sum(e.same for e in promised), sum(e.outputs for e in promised)
    if all_:
        tiles.append(
            Tile(f"{same}/{all_}", "outputs equal to plain, of methods that promise it",
                 ", ".join(each.name for each in broken), bad=same < all_)
        )  # fmt: skip
    return tuple(tiles)


def _is_plain(found: Sequence[Figures], baseline: str | None) -> bool:
    """Return whether the baseline is plain decoding; without a baseline there are no ratios."""
    return all(each.engine.mode == "plain" for each in found if each.name == baseline)


def _accepted(best: Figures) -> list[Tile]:
    length = best.cost.acceptance_length if best.cost else None
    if length is None:
        return []
    return [Tile(number(length.value), "tokens a drafted forward", f"{best.name}, bonus included")]


def _engine_tiles(found: Sequence[Figures], baseline: str | None) -> tuple[Tile, ...]:
    own = [each for each in found if _family(each, False) == OWN]
    if not own:
        return ()
    best = max(own, key=_decode)
    tiles = [Tile(number(_decode(best)), "tokens/s", best.name)]
    over = best.total.speedup
    if over is not None and baseline:
        interval = f"{number(over.low)} to {number(over.high)}"
        tiles.append(Tile(f"{number(over.value)}×", baseline, interval))
    if best.equality is not None and best.engine.reference:
        equal = best.equality
        tiles.append(Tile(f"{equal.same}/{equal.outputs}", "outputs equal to its plain mode",
                          bad=equal.same < equal.outputs))  # fmt: skip
    return tuple(tiles)


def _conditions(results: Results) -> tuple[tuple[str, str], ...]:
    settings = results.settings
    how = "greedy" if not settings.get("temperature") else f"temperature {settings['temperature']}"
    longest = max((item.max_tokens for item in results.items), default=0)
    return conditions(
        results, how,
        f"{len(results.items)} in {len(groups_of(results))} groups, "
        f"{sum(item.prompt_tokens for item in results.items)} prompt tokens, at most {longest} "
        f"new tokens each, {settings.get('rounds', '?')} interleaved rounds",
    )  # fmt: skip


def conditions(results: Results, how: str, inputs: str) -> tuple[tuple[str, str], ...]:
    """Return the model, inputs, machine and versions of a result, as (name, value).

    Args:
        how: how the model decoded; this text is written after the model's name.
        inputs: description of the inputs.
    """
    machine, threads = results.machine, results.settings.get("threads")
    versions = {
        e.peer: ", ".join(f"{name} {version}" for name, version in sorted(e.versions.items()))
        for e in results.engines if e.versions
    }  # fmt: skip
    several = len(set(versions.values())) > 1
    said = [f"{peer}: {found}" if several else found for peer, found in versions.items()]
    return (
        ("Model", f"{results.model}, {how}"),
        ("Inputs", inputs),
        ("Machine", f"{machine.cpu}, {machine.cores} cores, "
         f"{machine.memory_bytes / 2**30:.0f} GiB, {threads or 'all'} threads; "
         f"{', '.join(machine.isa)}; {machine.system}, Python {machine.python}"),
        ("Version", f"{results.created[:10]}, commit {results.commit[:12] or 'unknown'}"
         f"{'+' if results.commit.endswith('+') else ''}; {'; '.join(dict.fromkeys(said))}"),
    )  # fmt: skip


def _notes(results: Results, found: Sequence[Figures], decoders: bool) -> tuple[str, ...]:
    notes = [
        "Tokens/s: generated tokens after the first commit, over the time from there to the end; "
        "totals over all inputs, medians over rounds. Ratios are paired by prompt. Intervals are "
        "95 % bootstraps over prompts.",
    ]
    if decoders:
        notes.append(
            "Tokens/forward: of the target, the prompt's forward included; those of draft models "
            "and of partial layers are listed apart. Acceptance length: 1 + accepted / drafts. "
            "NLL gap: mean negative log-likelihood a token under the model, minus plain decoding's."
        )
    else:
        notes.append(
            "With prompt: all generated tokens over the whole time. Same as plain: outputs equal "
            "to those of the same engine's plain mode; first difference: median place of the first "
            "token that is not. Peak MB: resident memory of the engine's process, mapped weights "
            "included. NLL/token and own choice: mean negative log-likelihood of the engine's own "
            "output, and the share of its tokens that are the argmax, under a float32 forward of "
            "the same dequantised weights."
        )
    standings = dict.fromkeys(each.verdict for each in found if each.verdict)
    notes += [f"{word}: {STANDINGS[word]}." for word in standings]
    notes += [
        f"{each.name} differs from plain decoding in {item} (batch {batch}) from token {at}."
        for each in found if each.verdict == "broken" and each.equality
        for item, batch, at in each.equality.differing[:3]
    ]  # fmt: skip
    notes += [f"{e.name}: {e.status}: {e.reason}" for e in results.engines if e.status != "ok"]
    unsteady = [
        f"{each.name} ({each.total.items - each.repeatable} of "
        f"{each.total.items})"
        for each in found if each.repeatable < each.total.items
    ]  # fmt: skip
    if unsteady:
        notes.append(f"Outputs that changed from round to round: {', '.join(unsteady)}.")
    dropped = results.settings.get("dropped_prompts")
    if dropped:
        notes.append(f"{dropped} turns are longer than the model's context and were left out.")
    if results.commit.endswith("+"):
        notes.append("The working tree had uncommitted changes.")
    return tuple(notes)


def _doubts(found: Sequence[Figures], baseline: str | None) -> tuple[str, ...]:
    doubts = [SUSPICIOUS] if any(each.suspicious for each in found) else []
    base = next((each.total for each in found if each.name == baseline), None)
    if base is not None:
        ratios = {each.name: each.total.speedup for each in found if each.name != baseline}
        short = too_short(base.prompts, base.tokens, ratios)
        doubts += [short] if short else []
    worst = max((each.disturbed for each in found), default=0.0)
    if worst > 0:
        share = f"up to {100 * worst:.0f} % of a line's inputs"
        doubts.append(f"{BUSY} during every round of {share}.")
    return tuple(doubts)


def _decode(each: Figures) -> float:
    return each.total.decode.value if each.total.decode else 0.0


def _over(each: Figures) -> float:
    return each.total.speedup.value if each.total.speedup else 0.0


def _percent(found: Interval | None) -> str:
    return f"{100 * found.value:.1f} %" if found else ""


def _signed(found: Interval | None) -> str:
    if found is None:
        return ""
    value, low, high = (f"{v + 0.0:+.2f}" for v in (found.value, found.low, found.high))
    return "0" if found.low == found.high == 0 else f"{value} ({low} to {high})"
