"""`paradecode verify`: test that a method is lossless, and print a certificate."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer
from rich.progress import Progress

from paradecode.cli.console import err, out, print_json
from paradecode.cli.options import (
    Decoding,
    Json,
    Loading,
    grouped,
    only_autoregressive,
    option,
)
from paradecode.cli.progress import stopping
from paradecode.core.errors import InvalidInput


@grouped
def verify(
    loading: Loading,
    decoding: Decoding,
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: our prompts."),
    count: int | None = option(None, "Use this many of the prompts."),
    max_tokens: int = option(64, "Compare this many tokens of each output."),
    temperature: float = option(0.8, "Temperature of the sampled half; 0: all are greedy."),
    seed: int = option(0, "Seed of sampling; another seed gives another sample."),
    samples: int = option(1000, "Number of requests for each tested distribution."),
    keep_going: bool = option(False, "Go on after the first difference."),
    allow_near_ties: bool = option(False, "Accept differences that rounding explains."),
    as_json: Json = False,
) -> None:
    """Certify that a decoder keeps its guarantee with this model on this machine.

    The exit status is 0 if it passed, 1 if it failed or promises nothing, 2 if it is untestable.
    """
    from paradecode.methods.choice import check_draft_model
    from paradecode.prompts import encoder
    from paradecode_lab.measure.certificate.certify import certify
    from paradecode_lab.measure.certificate.plan import (
        CertificatePlan,
        Claim,
        choose_prompts,
    )
    from paradecode_lab.measure.certificate.record import certificate_record
    from paradecode_lab.measure.certificate.show import report
    from paradecode_lab.measure.prompts import first_turns

    spec = decoding.spec()
    if spec.method.family != "autoregressive":
        raise InvalidInput("--decoder", str(spec), only_autoregressive("verify"))
    draft_model = decoding.draft_model or spec.draft_model
    decoding.check_draft_model()
    check_draft_model(spec, draft_model)
    claim = Claim.of(spec)
    plan = CertificatePlan(
        max_tokens, temperature, seed, samples, keep_going=keep_going,
        allow_near_ties=allow_near_ties,
    )  # fmt: skip
    plan.check(claim)
    chosen = choose_prompts(prompts, count)
    with (
        stopping("[yellow]stopped: no certificate[/]"),
        loading.open_autoregressive("verify", draft_model=draft_model) as llm,
    ):
        texts = first_turns(chosen, encoder(llm))
        with Progress(console=err, transient=True) as progress:
            certificate = certify(llm.engine, claim, texts, plan, _Stages(progress))
        if as_json:
            print_json(certificate_record(certificate, llm, loading.model, loading.settings()))
        else:
            spelt = partial(llm.tokenizer.decode, skip_special=False)
            out.print(report(certificate, lambda token: spelt([token])))
    if certificate.verdict != "pass":
        raise typer.Exit(1)


class _Stages:
    """Shows one progress bar for each check; the bar of a check that ends early becomes full."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            for task in self._progress.tasks:
                self._progress.update(task.id, completed=task.total)
            self._stage, self._task = stage, self._progress.add_task(stage, total=total)
        self._progress.update(self._task, completed=done)
