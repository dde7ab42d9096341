"""`paradecode info`: this machine, and what a forward costs on it."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from rich.progress import Progress

from paradecode.cli.console import err, out, print_json
from paradecode.cli.options import Json, Loading, grouped, option
from paradecode.cli.progress import measure_forwards, watched
from paradecode.core.errors import InvalidInput


@grouped
def info(
    loading: Loading,
    calibrate: bool = option(False, "Measure the cost of forwards on this machine, and store it."),
    profile: bool = option(False, "Measure the time of a forward's parts, and the least possible."),
    context: int = option(300, "Cached tokens for --profile; fewer where they do not fit."),
    as_json: Json = False,
) -> None:
    """Show this machine's versions, kernels, and the cost of a forward."""
    from paradecode.cli.information import cost_table, in_words, machine_record, native_record
    from paradecode.cli.phases import measure_phases, phase_table
    from paradecode.engine import cost

    if context < 1:
        raise InvalidInput("--context", context, "give at least 1")
    record = {**machine_record(), "native": native_record()}
    curve = saved = phases = None
    if calibrate or profile:
        with loading.open() as llm:
            record |= {"model": llm.model, "backend": llm.backend.name}
            if calibrate:
                with Progress(console=err) as progress:
                    curve = measure_forwards(llm, progress)
                saved = cost.save(llm.backend, curve)
                record["cost"] = asdict(curve)
            if profile:
                phases = watched("timing forwards", partial(measure_phases, llm, context))
                record["profile"] = asdict(phases)
    if as_json:
        print_json(record)
        return
    for line in in_words(record):
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    if curve is not None:
        out.print(cost_table(curve))
        out.print(f"remembered in {saved}", highlight=False, soft_wrap=True)
    if phases is not None:
        out.print(phase_table(phases))
