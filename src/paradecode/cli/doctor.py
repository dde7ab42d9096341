"""`paradecode doctor`: what is installed, what is slow here and why, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import typer

from paradecode.cli.console import out, print_json
from paradecode.cli.options import Json, grouped

OPTIONAL = {
    "torch": ("a GPU, and models that the native core does not run", '".[torch]"'),
    "llguidance": ("JSON schemas, expressions and grammars", '".[constraints]"'),
    "uvicorn": ("`paradecode serve`", '".[serve]"'),
    "huggingface_hub": ("models by their hub names", '".[hub]"'),
    "paradecode-lab": ("`bench`, `plan`, `replay`, `report`, `train`, `tune` and `verify`", "lab"),
}
"""Package -> what needs it, and what pip installs in the checkout."""
LOOK = 0.5
"""Seconds for which the load of other processes is observed."""
STYLES = {"good": "green", "slow": "yellow", "missing": "dim", "wrong": "red"}


@dataclass(frozen=True)
class Finding:
    """The result of checking one part of the installation.

    Attributes:
        part: name of the part.
        state: ``good``; ``slow``; ``missing``, if only some uses need the part; or ``wrong``, if
            nothing runs.
        said: the facts.
        fix: what the user should do; empty if nothing.
    """

    part: str
    state: str
    said: str
    fix: str = ""


@grouped
def doctor(as_json: Json = False) -> None:
    """Show what is installed, and what is slow on this machine and why.

    The exit status is 1 if nothing can run.
    """
    found = [*machine(), model(), *packages()]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        for each in found:
            fix = f"; {each.fix}" if each.fix else ""
            out.print(f"{each.state:<8}", style=STYLES[each.state], end="")
            line = f"{each.part}: {each.said}{fix}"
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    if any(each.state == "wrong" for each in found):
        raise typer.Exit(1)


def machine() -> list[Finding]:
    """Check the native core, its kernels and threads, and what other processes use."""
    from time import sleep

    from paradecode.cli.information import machine_record, native_record
    from paradecode.timing.other_load import QUIET, OtherLoad

    record, native = machine_record(), native_record()
    if native["available"]:
        chosen = native["instruction_set"]
        plain = chosen == "portable" and native["built_in"] == ["portable"]
        said = f"{chosen}, {native['threads']} threads; {native['reason']}"
        fix = "compile it on this machine for its own kernels" if plain else ""
        core = Finding("native core", "slow" if plain else "good", said, fix)
    else:
        state = "slow" if record["packages"]["torch"] else "wrong"
        core = Finding("native core", state, "none, so PyTorch has to serve", native["reason"])
    cores, usable = record["cores"], record["usable_cores"]
    few = usable < cores
    threads = Finding(
        "cores", "slow" if few else "good", f"{usable} of {cores} are usable",
        "the others are withheld from this process (taskset, a container)" if few else "",
    )  # fmt: skip
    load = OtherLoad()
    sleep(LOOK)
    _, others = load.look()
    busy = others is not None and others > QUIET
    said = "unknown on this system" if others is None else f"{others:.1f} cores busy with them"
    fix = "end them, or give fewer --threads" if busy else ""
    return [core, threads, Finding("other processes", "slow" if busy else "good", said, fix)]


def model() -> Finding:
    """Check whether the default model is on this machine."""
    from paradecode.models.catalogue import DEFAULT, find

    entry = find(DEFAULT)
    path = entry.path if entry else None
    if path is None:
        fix = "paradecode models pull gets it; other models open by their file or folder"
        return Finding("default model", "missing", DEFAULT, fix)
    return Finding("default model", "good", str(path))


def packages() -> list[Finding]:
    """Check which optional packages are installed."""
    from paradecode.cli.information import version_of

    found = []
    for name, (use, source) in OPTIONAL.items():
        missing = f"needed for {use}", f"pip install -e {source} in the checkout"
        has = version_of(name)
        found.append(Finding(name, "good", has) if has else Finding(name, "missing", *missing))
    return found
