"""The command line: thin commands over the public front."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn, Progress
from rich.table import Table

from paradecode.core.errors import InvalidInput, ParadecodeError
from paradecode.core.sampling import SamplingParams
from paradecode.decoders.registry import Spec, methods, parse
from paradecode.models.catalogue import list_models, pull

app = typer.Typer(
    help="Parallel decoding of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="Models: list them, get them.", invoke_without_command=True)
app.add_typer(models_app, name="models")
out, err = Console(), Console(stderr=True)

DEFAULT_DECODER = "prompt-lookup"
MAX_LINE = 1 << 22

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Name, .gguf file, folder, or hub name.")
]
Decoder = Annotated[
    str, typer.Option("--decoder", "-d", help="Method, e.g. 'prompt-lookup(max_ngram=3)'.")
]
SpeculativeConfig = Annotated[
    str | None, typer.Option(help='The same as JSON: \'{"method": "prompt-lookup"}\'.')
]
DraftModel = Annotated[str | None, typer.Option(help="The small model of methods that need one.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus mass.")]
TopK = Annotated[int, typer.Option(help="Keep the k best tokens; 0 keeps all.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
Backend = Annotated[str, typer.Option(help="auto, native or torch.")]
Dtype = Annotated[str, typer.Option(help="Weights in the backend; auto follows the file.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; default: what is allowed.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="What to answer; - reads stdin.")] = None,
    model: Model = None,
    decoder: Decoder = DEFAULT_DECODER,
    speculative_config: SpeculativeConfig = None,
    draft_model: DraftModel = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
    backend: Backend = "auto",
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Threads = None,
    raw: Annotated[bool, typer.Option(help="Continue the prompt; no chat template.")] = False,
    show_forwards: Annotated[
        bool, typer.Option(help="Colour tokens by forward, underline drafted ones.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL of {id, group, turns, max_tokens}.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer one prompt, or every conversation of a file."""
    from paradecode.llm import LLM
    from paradecode.report.terminal import colour_by_forward, legend

    spec = _spec(decoder, speculative_config)
    params: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
        "top_k": top_k, "seed": seed,
    }  # fmt: skip
    SamplingParams.from_mapping(params)  # Refuse a bad setting before the model is loaded.
    if (prompt is None) == (prompts is None):
        raise InvalidInput("PROMPT", prompt, "give either a prompt or --prompts FILE")
    conversations = list(_read_conversations(prompts)) if prompts else []
    if prompt == "-":
        prompt = sys.stdin.read(MAX_LINE)
    with LLM(
        model, decoder=spec, draft_model=draft_model,
        backend=backend, dtype=dtype, device=device, threads=threads,
    ) as llm:  # fmt: skip
        for conversation in conversations:
            _converse(llm, conversation, params)
        if prompt is None:
            return
        messages = [{"role": "user", "content": prompt}]
        target: Any = prompt if raw or llm.chat_template is None else messages
        if as_json:
            chunks = list(llm.stream(target, **params))
            _print_json(_record(llm, chunks[-1].completion))
        elif show_forwards:
            completion = list(llm.stream(target, **params))[-1].completion
            assert completion is not None
            out.print(colour_by_forward(completion, llm.tokenizer.stream))
            out.print(legend(completion))
        else:
            for chunk in llm.stream(target, **params):
                out.print(chunk.text, end="", markup=False, highlight=False, soft_wrap=True)
            out.print()


@app.command()
def chat(
    model: Model = None,
    decoder: Decoder = DEFAULT_DECODER,
    speculative_config: SpeculativeConfig = None,
    draft_model: DraftModel = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    top_k: TopK = 0,
    seed: Seed = None,
    backend: Backend = "auto",
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Threads = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
) -> None:
    """Talk to a model. An empty line or Ctrl-D leaves; Ctrl-C stops an answer."""
    from paradecode.llm import LLM

    spec = _spec(decoder, speculative_config)
    params: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
        "top_k": top_k, "seed": seed,
    }  # fmt: skip
    SamplingParams.from_mapping(params)
    with LLM(
        model, decoder=spec, draft_model=draft_model,
        backend=backend, dtype=dtype, device=device, threads=threads,
    ) as llm:  # fmt: skip
        out.print(f"[dim]{llm.model} on {llm.backend.name}, {spec}[/]")
        messages = [{"role": "system", "content": system}] if system else []
        while True:
            try:
                text = out.input("[bold cyan]> [/]")
            except (EOFError, KeyboardInterrupt):
                break
            if not text.strip():
                break
            messages.append({"role": "user", "content": text})
            answer = ""
            try:
                for chunk in llm.stream(messages, **params):
                    answer += chunk.text
                    out.print(chunk.text, end="", markup=False, highlight=False, soft_wrap=True)
                    if chunk.completion:
                        stats = chunk.completion.stats
                        out.print(
                            f"\n[dim]{stats.tokens_per_second:.0f} tokens/s, "
                            f"{stats.tokens_per_forward:.2f} tokens a forward[/]"
                        )
            except KeyboardInterrupt:
                out.print("\n[dim]stopped[/]")
            except InvalidInput as error:  # Most likely the conversation outgrew the context.
                err.print(f"[red]{error}[/]")
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": answer})


@app.command(name="methods")
def list_methods(as_json: Json = False) -> None:
    """Every decoding method, with its guarantee and its paper."""
    from paradecode.report.records import method_record

    known = sorted(methods().values(), key=lambda method: (method.family, method.name))
    if as_json:
        _print_json([method_record(method) for method in known])
        return
    table = Table("method", "family", "guarantee", "training", "paper", "settings")
    for method in known:
        paper = method.paper + (f" ({method.arxiv})" if method.arxiv else "")
        settings = ", ".join(f"{p.name}={p.default}" for p in method.parameters)
        table.add_row(
            method.name, method.family, method.guarantee, method.training, paper, settings
        )
    out.print(table)


@models_app.callback()
def show_models(context: typer.Context, as_json: Json = False) -> None:
    """Every model of the catalogue, and whether it is on this machine."""
    if context.invoked_subcommand is not None:
        return
    known = list_models()
    if as_json:
        _print_json(
            [
                {
                    "name": entry.name,
                    "family": entry.family,
                    "licence": entry.licence,
                    "size": entry.size,
                    "present": entry.present,
                    "path": str(entry.path) if entry.path else None,
                }
                for entry in known
            ]
        )
        return
    table = Table("model", "family", "size", "licence", "present")
    for entry in known:
        size = f"{entry.size / 1e6:.0f} MB"
        table.add_row(
            entry.name, entry.family, size, entry.licence, "yes" if entry.present else "no"
        )
    out.print(table)


@models_app.command(name="pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="Name of the catalogue.")] = "default",
) -> None:
    """Download a model of the catalogue and check its hash."""
    with Progress(*Progress.get_default_columns(), DownloadColumn(), console=err) as progress:
        task = progress.add_task(name, total=None)
        path = pull(name, lambda done, total: progress.update(task, completed=done, total=total))
    out.print(str(path), soft_wrap=True, highlight=False)


@app.command()
def info(
    model: Model = None,
    backend: Backend = "auto",
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Threads = None,
    calibrate: Annotated[
        bool, typer.Option(help="Measure what a forward costs here, and remember it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """This machine: versions, kernels, and the cost of a forward."""
    from paradecode.engine import cost
    from paradecode.engine.engine import TARGET
    from paradecode.llm import LLM
    from paradecode.report.information import (
        cost_record,
        cost_table,
        machine_record,
        native_record,
    )  # fmt: skip

    record = {**machine_record(), "native": native_record()}
    curve = saved = None
    if calibrate:
        with LLM(model, backend=backend, dtype=dtype, device=device, threads=threads) as llm:
            with Progress(console=err) as progress:
                task = progress.add_task("measuring forwards")
                curve = cost.measure(
                    llm.backend,
                    llm.engine.pools[TARGET].count,
                    progress=lambda done, total: progress.update(task, completed=done, total=total),
                )
            saved = cost.save(llm.backend, curve)
            record |= {"model": llm.model, "backend": llm.backend.name, "cost": cost_record(curve)}
    if as_json:
        _print_json(record)
        return
    for name, value in record.items():
        if name != "cost":
            out.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)
    if curve is not None:
        out.print(cost_table(curve))
        out.print(f"remembered in {saved}", highlight=False, soft_wrap=True)


@app.command()
def demo(
    model: Model = None,
    decoder: Decoder = DEFAULT_DECODER,
    max_tokens: MaxTokens = 128,
    backend: Backend = "auto",
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Three prompts, decoded plainly and in parallel, side by side."""
    from paradecode.llm import LLM
    from paradecode.report.demo import run_demo

    with LLM(
        model, decoder=parse(decoder), backend=backend, dtype=dtype, device=device, threads=threads
    ) as llm:
        compared = run_demo(llm, out, max_tokens)
    if any(comparison.first_difference is not None for comparison in compared):
        err.print("[yellow]An output differs from plain decoding; see docs on numerical ties.[/]")
        raise typer.Exit(1)


@app.command()
def datastore(
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    files: Annotated[list[Path], typer.Argument(help="UTF-8 texts, one document each.")],
    model: Model = None,
) -> None:
    """Build the file that the method `retrieval` drafts from, with a model's tokenizer."""
    from paradecode.decoders.autoregressive.datastore import build_datastore
    from paradecode.models.catalogue import open_model

    tokenizer = open_model(model).tokenizer
    count = build_datastore(
        files, lambda text: tokenizer.encode(text, special=False, parse_special=False), output
    )
    out.print(f"{count} tokens in {output}", soft_wrap=True, highlight=False)


def _spec(decoder: str, speculative_config: str | None) -> Spec:
    if speculative_config is not None and decoder != DEFAULT_DECODER:
        raise InvalidInput("--speculative-config", speculative_config, "leave --decoder out")
    return parse(speculative_config if speculative_config is not None else decoder)


def _read_conversations(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a prompts file, checked."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("--prompts", str(path), f"give a readable file ({error})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        try:
            entry = json.loads(line) if len(line) <= MAX_LINE else None
        except (ValueError, RecursionError):
            entry = None
        turns = entry.get("turns") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(turns, list) or not turns:
            raise InvalidInput(where, line, 'write {"id": ..., "turns": ["..."]}')
        if not all(isinstance(turn, str) for turn in turns):
            raise InvalidInput(f"{where} turns", turns, "give texts")
        if "max_tokens" in entry:
            SamplingParams.from_mapping({"max_tokens": entry["max_tokens"]})
        yield entry


def _converse(llm: Any, conversation: dict[str, Any], params: dict[str, Any]) -> None:
    """Answer the turns one after the other; print a record as each finishes."""
    messages: list[dict[str, str]] = []
    settings = dict(params)
    if "max_tokens" in conversation:
        settings["max_tokens"] = conversation["max_tokens"]
    for turn, text in enumerate(conversation["turns"]):
        messages.append({"role": "user", "content": text})
        head = {"id": conversation.get("id"), "group": conversation.get("group"), "turn": turn}
        try:
            completion = llm.chat(messages, **settings)
        except ParadecodeError as error:
            _print_json({**head, "error": str(error)}, line=True)
            return
        messages.append({"role": "assistant", "content": completion.text})
        _print_json({**head, **_record(llm, completion)}, line=True)


def _record(llm: Any, completion: Any) -> dict[str, Any]:
    from paradecode.report.records import completion_record

    return completion_record(completion, llm.model, str(llm.decoder), llm.backend.name)


def _print_json(value: Any, line: bool = False) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=None if line else 2), flush=True)


def main() -> None:
    """Entry point: errors that a user can act on are one line, not a traceback."""
    try:
        app()
    except ParadecodeError as error:
        err.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
