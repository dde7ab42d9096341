"""One run of ``make bench``: install, convert, load, measure in turns, score, and write."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from paradecode.backends import open_backend
from paradecode.llm import LLM
from paradecode.models.checkpoint import Checkpoint
from paradecode.prompts import Messages
from paradecode.timing.other_load import QUIET
from paradecode_lab.measure.journal import Journal
from paradecode_lab.measure.machine import digest
from paradecode_lab.measure.prompts import Conversation, Item, make_items
from paradecode_lab.measure.quality import OutputScorer, distinct_outputs
from paradecode_lab.measure.results import ItemInfo, Record, Results, Score
from paradecode_lab.measure.turns import DoneKey, PlayerError, Unit, run, schedule, units_of
from tools.peers.catalogue import Engine
from tools.peers.checkout import InstallError
from tools.peers.environments import Environment, install
from tools.peers.formats import FormatError, Formats
from tools.peers.player import Conditions, PeerPlayer
from tools.peers.process import WorkerError
from tools.peers.progress import Steps


@dataclass(frozen=True)
class Options:
    """The settings of a run.

    Attributes:
        checkpoint: the model, read from a GGUF file.
        engines, prompts, rounds: the engines to measure, the prompts, and the number of
            repetitions.
        max_tokens: upper bound on the token limits of the prompts.
        threads: number of threads of every engine.
        timeout: seconds that one generation may take.
        urgent: whether to raise the priority of the worker that is measured, where this is allowed.
        retries: the most repetitions of a disturbed measurement.
        out: folder for environments, models and runs.
        name: name of the run; the same name resumes an interrupted run.
    """

    checkpoint: Checkpoint
    engines: Sequence[Engine]
    prompts: Sequence[Conversation]
    rounds: int
    max_tokens: int | None
    threads: int
    timeout: float
    urgent: bool
    retries: int
    out: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.out / "runs" / self.name


class Session:
    """Holds all workers of a run, so that they are ended whatever happens."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options, self.console = options, console
        self.checkpoint = options.checkpoint
        self.source = Path(self.checkpoint.source)
        models = options.out / "models"
        self.formats = Formats(self.source, models, self._python, self._say)
        self.items = self._items()
        longest = max(len(item.token_ids) + item.max_tokens for item in self.items)
        self.conditions = Conditions(
            threads=options.threads,
            context=min(-(-(longest + 16) // 256) * 256, self.checkpoint.config.context_length),
            stop_ids=tuple(sorted(self.checkpoint.config.eos_tokens)),
            timeout=options.timeout,
            urgent=options.urgent,
        )
        settings = {
            "weights": digest(self.source),
            "items": _digest([asdict(item) for item in self.items]),
            "threads": options.threads,
            "context": self.conditions.context,
            "stop_ids": self.conditions.stop_ids,
        }
        self.journal = Journal(options.folder / "raw.jsonl", settings)
        self.players: dict[str, PeerPlayer] = {}
        self._failed: dict[str, InstallError] = {}

    def prepare(self) -> None:
        """Install and convert, and then load the engines that have something left to measure.

        Engines are loaded last, because compilers and exporters need the memory that they would
        hold.
        """
        missing = Counter(name for name, *_ in self._missing())
        self.console.print(
            f"{sum(missing.values())} measurements to make with {len(missing)} engines, "
            f"{len(self.journal.done)} made before",
            highlight=False,
        )
        wanted = [engine for engine in self.options.engines if engine.name in missing]
        found = [(engine, self._install(engine)) for engine in wanted]
        ready = [(engine, python) for engine, python in found if python is not None]
        for number, (engine, python) in enumerate(ready, 1):
            self._say(f"loading {number} of {len(ready)}: {engine.name}")
            self._load(engine, python)

    def measure(self) -> None:
        """Take all turns that are not in the journal."""
        options = self.options
        turns = list(schedule(self._units(), list(self.players.values()), self.journal.done))
        left = Counter(turn.player.name for turn in turns)
        with Steps(self.console, "measuring", len(turns)) as steps:

            def keep(record: Record) -> None:
                self.journal.keep(record)
                left[record.engine] -= 1
                steps.advance(f"{record.engine} {record.item}")

            def lost(name: str, reason: str) -> None:
                self.console.print(f"[yellow]{name} failed:[/] {reason}", highlight=False)
                self.journal.describe(self.players[name].info("failed", reason))
                self._close(name)
                steps.drop(left[name])

            quiet = QUIET if options.retries else None
            try:
                run(turns, keep, lost, quiet, options.retries)
            finally:  # Peak memory is known only now, also if the run is interrupted.
                for player in self.players.values():
                    self.journal.describe(player.info())

    def results(self) -> Results:
        """Return the results in the journal, scored by the oracle if PyTorch is installed."""
        order = [e.name for e in self.options.engines]
        known = self.journal.engines
        names = [*(n for n in order if n in known), *(n for n in known if n not in order)]
        done = {record.round for record in self.journal.records}
        return Results(
            **self.journal.stamp,
            model=self.checkpoint.config.name,
            settings={
                "rounds": len(done),
                "threads": self.options.threads,
                "context": self.conditions.context,
                "stop_ids": list(self.conditions.stop_ids),
                "temperature": 0,
                "quiet_below": QUIET if self.options.retries else None,
                "priority": self.options.urgent,
                "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", ""),
            },
            items=tuple(
                ItemInfo(i.id, i.prompt, i.group, len(i.token_ids), i.max_tokens)
                for i in self.items
            ),
            engines=tuple(known[name] for name in names),
            records=tuple(self.journal.records),
            scores=self._scores(),
        )

    def close(self) -> None:
        """End every worker."""
        for name in list(self.players):
            self._close(name)

    def _install(self, engine: Engine) -> Path | None:
        """Install an engine and convert its weights; returns its Python, or None if that failed."""
        try:
            python = self._python(engine.environment)
            for name in engine.formats:
                self.formats.path(name)
        except (InstallError, FormatError, OSError) as error:
            self._skip(engine, error)
            return None
        return python

    def _load(self, engine: Engine, python: Path) -> None:
        try:
            log = self.options.folder / "logs" / (engine.name.replace("/", "-") + ".log")
            player = PeerPlayer(engine, python, self.formats, self.conditions, log)
            self.players[engine.name] = player
            player.warm_up(self.items)
        except (WorkerError, PlayerError, OSError) as error:
            self._skip(engine, error)
        else:
            self.journal.describe(player.info())

    def _skip(self, engine: Engine, error: Exception) -> None:
        """Leave an engine out. The run goes on without it, and the results have the reason."""
        self._close(engine.name)
        self.journal.describe(engine.info(status="skipped", reason=str(error)))
        self.console.print(f"  [yellow]{engine.name} skipped:[/] {error}", highlight=False)

    def _close(self, name: str) -> None:
        player = self.players.pop(name, None)
        if player is not None:
            player.close()

    def _units(self) -> list[Unit]:
        """Return a unit for every input alone, round by round."""
        rounds = range(self.options.rounds)
        return [unit for number in rounds for unit in units_of(self.items, round=number)]

    def _missing(self) -> set[DoneKey]:
        wanted = {
            (engine.name, 1, number, item.id)
            for engine in self.options.engines
            for item in self.items
            for number in range(min(self.options.rounds, engine.max_rounds))
        }
        return wanted - self.journal.done

    def _python(self, environment: Environment | None) -> Path:
        if environment is None:
            return Path(sys.executable)  # The Python of this process has Paradecode.
        # Several engines may need it, and one attempt is enough.
        if environment.name in self._failed:
            raise self._failed[environment.name]
        try:
            return install(environment, self.options.out, self._say)
        except InstallError as error:
            self._failed[environment.name] = error
            raise

    def _say(self, line: str) -> None:
        self.console.print(f"  [dim]{line}[/]", highlight=False)

    def _items(self) -> list[Item]:
        """Return the items of all turns.

        They are kept with the run, because the model generates the earlier answers of a
        conversation.
        """
        wanted = _digest([asdict(p) for p in self.options.prompts], self.options.max_tokens)
        file = self.options.folder / "items.json"
        if file.exists():
            kept = json.loads(file.read_text("utf-8"))
            if kept["of"] == wanted:
                return [Item(**{**i, "token_ids": tuple(i["token_ids"])}) for i in kept["items"]]
        source = str(self.source)
        with LLM(source, decoder="greedy", threads=self.options.threads) as llm:

            def answer(messages: Messages, limit: int) -> str:
                return llm.chat(messages, max_tokens=limit).text

            prompts, limit = self.options.prompts, self.options.max_tokens
            items = make_items(prompts, llm.chat_tokens, answer, limit)
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"of": wanted, "items": [asdict(item) for item in items]}
        file.write_text(json.dumps(kept), "utf-8")
        return items

    def _scores(self) -> dict[tuple[str, tuple[int, ...]], Score]:
        """Return the oracle's score of every distinct output; empty if PyTorch is not installed."""
        by_id = {item.id: item for item in self.items}
        outputs = [(r.item, r.token_ids) for r in self.journal.records if not r.error]
        if not outputs:
            return {}
        try:
            oracle = OutputScorer(
                open_backend("torch", self.checkpoint.config, self.checkpoint.weights,
                             dtype="fp32", threads=self.options.threads),
                self.items, max(len(ids) for _, ids in outputs),
            )  # fmt: skip
        except Exception as error:
            self.console.print(f"[yellow]no quality scores:[/] {error}", highlight=False)
            return {}
        scores = {}
        fresh = distinct_outputs(outputs)
        with Steps(self.console, "scoring", len(fresh)) as steps:
            for key in fresh:
                scores[key] = oracle.score(by_id[key[0]], key[1])
                steps.advance(key[0])
        return scores


def _digest(*values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
