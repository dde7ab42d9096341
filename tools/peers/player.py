"""Loads a peer, and lets it take turns in a measurement."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradecode.core.checks import build
from paradecode.timing.other_load import OtherLoad
from paradecode.timing.warm_up import TOKENS, until
from paradecode_lab.measure.machine import describe
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import Counts, EngineInfo, Record, trim
from paradecode_lab.measure.turns import PlayerError, Unit
from tools.peers.catalogue import Engine
from tools.peers.formats import Formats
from tools.peers.process import Worker, WorkerError

LOAD_TIMEOUT = 900.0
# llama.cpp's name of an instruction set that decides its speed -> the system's name of it.
DECISIVE = {
    "avx2": "avx2", "fma": "fma", "avx512": "avx512f", "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16", "amx_int8": "amx_int8", "neon": "asimd", "dotprod": "asimddp",
    "matmul_int8": "i8mm",
}  # fmt: skip
LEAST_FREE = 3 << 29
"""Bytes of memory that must be available before another engine is loaded."""


@dataclass(frozen=True)
class Conditions:
    """Conditions that are the same for every engine of a run.

    Attributes:
        threads: number of threads.
        context: context length in tokens.
        stop_ids: token ids that end an output.
        timeout: seconds that one generation may take.
        urgent: whether the process that is measured gets a higher priority.
    """

    threads: int
    context: int
    stop_ids: tuple[int, ...]
    timeout: float
    urgent: bool


class PeerPlayer:
    """Starts an engine's worker, and plays with it.

    It is a :class:`paradecode_lab.measure.turns.Player`.

    Raises:
        WorkerError: the engine cannot be loaded.
        FormatError: its weights cannot be converted.
    """

    def __init__(
        self, engine: Engine, python: Path, formats: Formats, conditions: Conditions, log: Path
    ) -> None:
        if _available() < LEAST_FREE:
            raise WorkerError("not enough memory is free to load it beside the others")
        self.engine, self.name, self.max_rounds = engine, engine.name, engine.max_rounds
        self._conditions = conditions
        self._asked = Counter[tuple[str, int]]()
        settings: dict[str, Any] = {
            "model": str(formats.path(engine.files)),
            "threads": conditions.threads,
            "context": conditions.context,
            "cores": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        }
        for name, value in engine.settings.items():
            wanted = value.get("format") if isinstance(value, dict) else None
            settings[name] = str(formats.path(wanted)) if wanted else value
        variables = {
            "OMP_NUM_THREADS": str(conditions.threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._worker = Worker(python, engine.worker, log, variables, conditions.urgent)
        try:
            loaded = self._worker.ask({"load": settings}, LOAD_TIMEOUT)
        except BaseException:
            self._worker.kill()
            raise
        self._load_seconds = loaded["seconds"]
        self._versions = {**loaded["versions"], **said_of_itself(loaded["system"])}

    def warm_up(self, items: Sequence[Item]) -> None:
        """Let the engine do its one-time work (see :mod:`paradecode.timing.warm_up`).

        The longest and the shortest prompt take turns, each time for another tenant.
        """
        by_length = sorted(items, key=lambda item: len(item.token_ids))

        def answer(turn: int, missing: int) -> int:
            item = by_length[-1 if turn % 2 == 0 else 0]
            made = self._ask(item, min(item.max_tokens, missing), f"warm-up {turn}")
            return len(made["token_ids"])

        until(TOKENS, answer)

    def play(self, unit: Unit) -> list[Record]:
        (item,) = unit.items
        load = OtherLoad(self._worker.cpu_seconds)
        answer = self._ask(item, item.max_tokens, self._tenant(item, unit.round))
        _, others = load.look()
        ids = trim(
            answer["token_ids"], self._conditions.stop_ids, item.max_tokens, answer["stopped"]
        )
        if not ids:
            raise PlayerError("the output is empty")
        record = Record(
            engine=self.name,
            item=item.id,
            round=unit.round,
            token_ids=ids,
            first_tokens=min(answer["first_tokens"], len(ids)),
            prefill_seconds=answer["prefill_seconds"],
            decode_seconds=answer["decode_seconds"],
            other_load=others,
            counts=build(Counts, answer["counts"], "counts") if "counts" in answer else None,
        )
        return [record]

    def _tenant(self, item: Item, round: int) -> str:
        """Return the tenant for an engine that learns from its answers.

        It is the same for a whole round. A repeated request gets a tenant of its own: what the
        engine learned from the first answer would help.
        """
        self._asked[item.id, round] += 1
        tries = self._asked[item.id, round]
        return f"round {round}" if tries == 1 else f"round {round} {item.id} try {tries}"

    def info(self, status: str = "ok", reason: str = "") -> EngineInfo:
        """Describe the engine as it is known now.

        Its peak memory may grow until the end of the run.
        """
        return self.engine.info(
            versions=self._versions,
            status=status,
            reason=reason,
            load_seconds=self._load_seconds,
            peak_bytes=self._worker.peak_bytes(),
        )

    def close(self) -> None:
        self._worker.kill()

    def _ask(self, item: Item, max_tokens: int, tenant: str) -> dict[str, Any]:
        request = {
            "prompt_token_ids": item.token_ids,
            "max_tokens": max_tokens,
            "stop_token_ids": self._conditions.stop_ids,
            "tenant": tenant,
        }
        try:
            return self._worker.ask(request, self._conditions.timeout)
        except WorkerError as error:
            raise PlayerError(str(error), error.ended) from None


def said_of_itself(system: Mapping[str, str]) -> dict[str, str]:
    """Turn a worker's ``system`` into versions.

    ``without`` names instructions that it leaves unused.
    """
    told = {name: text for name, text in system.items() if name != "info"}
    if "info" in system:
        used = {name.lower() for name in re.findall(r"(\w+) = 1", system["info"])}
        here = set(describe().isa)
        unused = [own for own, name in DECISIVE.items() if name in here and own not in used]
        told |= {"without": " ".join(unused)} if unused else {}
    return told


def _available() -> int:
    """Return the bytes of memory that are available without swapping; a large number if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return 1 << 60
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
