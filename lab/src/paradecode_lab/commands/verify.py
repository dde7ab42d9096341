"""`paradecode verify`: test that a method, or a server, is lossless, and print a certificate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
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
from paradecode.cli.outputs import writable
from paradecode.cli.progress import stopping
from paradecode.core.checks import one_of
from paradecode.core.errors import InvalidInput
from paradecode.methods.choice import AUTO


@dataclass(frozen=True)
class Endpoints:
    """Options that make the command test a server, which `--model` names a model of."""

    endpoint: list[str] | None = option(
        None,
        "Test this OpenAI-compatible server; a second URL is its speculative side.",
        "--endpoint -e",
    )
    body: list[str] | None = option(
        None, "Add fields to requests: 'plain={\"a\": 1}', 'speculative={\"a\": 2}', or both."
    )
    api: str = option("completions", "Use this part of the API: completions or chat.")
    concurrency: int = option(8, "Requests at a time at an endpoint.", "--concurrency -c")
    minutes: float = option(10.0, "Test the law at as many places as this time allows, up to six.")
    thorough: bool = option(False, "Find shifts of 0.01: 250000 draws at a place of an endpoint.")
    seeded: bool = option(False, "The server promises that a seed gives the same tokens.")
    key: str | None = option(
        None, "Key for the endpoints.", "--api-key", envvar="PARADECODE_API_KEY"
    )
    command: str | None = option(
        None, "How the endpoint was started: versions and flags, for the certificate."
    )
    output: Path | None = option(
        None, "Write the endpoint's certificate: .md, .html or .json.", "--output -o"
    )


@grouped
def verify(
    loading: Loading,
    decoding: Decoding,
    endpoints: Endpoints,
    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: our prompts."),
    count: int | None = option(None, "Use this many of the prompts."),
    max_tokens: int = option(64, "Compare this many tokens of each output."),
    temperature: float = option(0.8, "Temperature of the sampled half; 0: all are greedy."),
    seed: int = option(0, "Seed of sampling; another seed gives another sample."),
    samples: int | None = option(
        None, "Requests for each tested distribution; default 1000, of each side 10000."
    ),
    keep_going: bool = option(False, "Go on after the first difference."),
    allow_near_ties: bool = option(False, "Accept differences that rounding explains."),
    as_json: Json = False,
) -> None:
    """Certify that a decoder keeps its guarantee with this model on this machine.

    With --endpoint: that a server's speculation changes neither its tokens nor their law.

    The exit status is 0 if it passed, 1 if it failed or promises nothing, 2 if it is untestable.
    """
    if endpoints.endpoint:
        if decoding.decoder != AUTO:
            fix = "an endpoint's method is chosen at its start, or by --body"
            raise InvalidInput("--decoder", decoding.decoder, fix)
        settings = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        verdict = _verify_server(
            endpoints, loading.model, settings, prompts, count, samples, as_json
        )
        if verdict != "pass":
            raise typer.Exit({"fail": 1, "none": 2}[verdict])
        return
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
        max_tokens, temperature, seed, samples or 1000, keep_going=keep_going,
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


def _verify_server(
    given: Endpoints,
    model: str | None,
    settings: dict[str, Any],
    prompts: Path | None,
    count: int | None,
    samples: int | None,
    as_json: bool,
) -> str:
    """Test a server, print and write its certificate, and return the verdict."""
    from paradecode_lab.measure.certificate.plan import choose_prompts
    from paradecode_lab.measure.certificate.servers import certify, page
    from paradecode_lab.measure.certificate.servers.client import RemoteServer
    from paradecode_lab.measure.certificate.servers.sides import Side
    from paradecode_lab.measure.result_files import write_json
    from paradecode_lab.measure.suites.load.plan import Endpoint, read_endpoints

    urls = given.endpoint or []
    if len(urls) > 2:
        raise InvalidInput("--endpoint", len(urls), "give one server, or a plain and a speculative")
    one_of("completions", "chat")("--api", given.api)
    named = [f"plain={urls[0]}", f"speculative={urls[-1]}"]
    plain, drafting = read_endpoints(named, given.body or [], model)
    if plain.url == drafting.url and plain.body == drafting.body:
        fix = "give a second --endpoint, or --body 'plain={...}' and --body 'speculative={...}'"
        raise InvalidInput("--endpoint", urls[0], fix)
    kind = given.output.suffix if given.output else ".md"
    one_of(".md", ".html", ".json")("--output", kind)
    if given.output:
        writable("--output", given.output)
    plan = certify.ServerPlan(
        samples=samples or (certify.THOROUGH if given.thorough else certify.SAMPLES),
        minutes=given.minutes, concurrency=given.concurrency, seeded=given.seeded, **settings,
    )  # fmt: skip
    chosen = choose_prompts(prompts, count)
    facts = {"api": given.api, "started by": given.command or ""}

    def side(each: Endpoint) -> Side:
        server = RemoteServer(each.url, given.key)
        name = each.model or server.first_model()
        shown = f" with {json.dumps(each.body)}" if each.body else ""
        facts[each.name] = f"{Path(name).name} at {each.url}{shown}"
        return Side(each.name, server, given.api, {"model": name, **each.body})

    sides = side(plain), side(drafting)
    stopped = "[yellow]stopped: no certificate[/]"
    with stopping(stopped), Progress(console=err, transient=True) as progress:
        found = certify.certify_server(*sides, chosen, plan, _Stages(progress))
    record, listed = page.server_record(found, facts), page.parts(found, facts)
    title = "Certificate of a server's speculation"
    if given.output and kind == ".json":
        write_json(record, given.output)
    elif given.output:
        write = page.html_page if kind == ".html" else page.markdown_page
        given.output.write_text(write(title, listed), "utf-8")
    if as_json:
        print_json(record)
    else:
        out.print(escape(page.markdown_page(title, listed)), soft_wrap=True, highlight=False)
    return found.verdict


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
