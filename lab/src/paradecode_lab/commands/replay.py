"""`paradecode replay`: decode a workload once, then try methods on the recording."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from paradecode.cli.console import STOPPED, err, out, print_json
from paradecode.cli.options import (
    Json,
    Loading,
    PerGroup,
    SamplingOptions,
    argument,
    grouped,
    option,
)
from paradecode.cli.outputs import writable
from paradecode.cli.progress import measure_forwards
from paradecode.core.errors import InvalidInput

SAMPLING = SamplingOptions(max_tokens=64)

replay_app = typer.Typer(
    help="Try decoding methods on a recorded workload, without the model.",
    no_args_is_help=True,
    add_completion=False,
)


@grouped
def record(
    output: Annotated[Path, typer.Argument(help="Write to this file.")],
    loading: Loading,
    sampling: SamplingOptions = SAMPLING,
    prompts: Path | None = option(None, "JSONL of {id, group, turns, max_tokens}; has a default."),
    per_group: PerGroup = None,
    top: int | None = option(None, "Store this many of the best tokens of each distribution."),
    calibrate: bool = option(
        True, "Measure the cost of forwards first; otherwise use the stored cost."
    ),
) -> None:
    """Decode a workload plainly, and record the distributions. Ctrl-C keeps finished requests."""
    from paradecode.core.checks import whole
    from paradecode.core.sampling import SamplingParams
    from paradecode.timing.warm_up import warm_up
    from paradecode_lab.measure.prompts import first_of_each_group, load_prompts, make_items
    from paradecode_lab.measure.replay.recorder import TOP, assembled, recorded
    from paradecode_lab.measure.replay.recording import MOST_TOP
    from paradecode_lab.measure.replay.timing import WIDE

    writable("OUTPUT", output)
    params = SamplingParams.from_mapping(sampling.params())
    chosen = first_of_each_group(load_prompts(prompts), per_group)
    k = TOP if top is None else whole(1, MOST_TOP)("--top", top)
    requests: list[Any] = []
    stopped = False
    opened = loading.open_autoregressive("replay record")
    with opened as llm, Progress(console=err) as progress:

        def answer(messages: list[dict[str, str]], limit: int) -> str:
            return llm.chat(messages, max_tokens=limit).text

        warm_up(llm, [WIDE])
        if calibrate:
            measure_forwards(llm, progress)
        task = progress.add_task("prompts", total=len(chosen))
        try:
            for prompt in chosen:
                items = make_items([prompt], llm.chat_tokens, answer, params.max_tokens)
                requests += recorded(llm.engine, items, params, k)
                progress.advance(task)
        except KeyboardInterrupt:
            stopped = True
        if not requests:
            raise typer.Exit(STOPPED)
        recording = assembled(llm, requests, params, k)
    recording.save(output)
    tokens = sum(len(request.output) for request in requests)
    out.print(f"{len(requests)} requests, {tokens} tokens in {output}", soft_wrap=True)
    if stopped:
        raise typer.Exit(STOPPED)


@grouped
def run(
    recording: Annotated[Path, typer.Argument(help="A file that `replay record` wrote.")],
    specs: list[str] | None = argument(
        None, "Methods to try; default: those without training.", sets="decoder"
    ),
    by_group: bool = option(False, "Also print a line for each group of at least three requests."),
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Predict what methods do on the recording: acceptance, forwards and speed."""
    from paradecode.methods.specs import parse
    from paradecode_lab.measure.replay import Recording, play, replayable
    from paradecode_lab.measure.replay.outcome import (
        outcome_record,
        outcome_table,
        too_short_to_rank,
    )
    from paradecode_lab.measure.replay.player import PLAIN, reads_states

    if not recording.is_file():
        raise InvalidInput("RECORDING", str(recording), "make it with `paradecode replay record`")
    made = Recording.load(recording)
    names = specs or replayable(made)
    with ExitStack() as stack:
        target = None
        if any(reads_states(parse(name)) for name in names):
            llm = stack.enter_context(loading.open())
            made.model.require(llm)
            target = llm.engine
        progress = stack.enter_context(Progress(console=err))
        task = progress.add_task("methods", total=len(names) + 1)
        plain = play(made, PLAIN)
        progress.advance(task)
        outcomes = []
        for name in names:
            outcomes.append(play(made, name, target=target if reads_states(parse(name)) else None))
            progress.advance(task)
    if as_json:
        head = {"model": made.model.name, "requests": len(made.requests),
                "temperature": made.params.temperature,
                "too_short": too_short_to_rank(outcomes, plain)}  # fmt: skip
        methods = [outcome_record(outcome, plain) for outcome in (plain, *outcomes)]
        print_json({**head, "methods": methods})
        return
    out.print(outcome_table(outcomes, plain, by_group=by_group))


replay_app.command()(record)
replay_app.command()(run)
