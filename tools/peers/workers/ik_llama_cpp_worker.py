"""Runs ik_llama.cpp through the program that ``tools.peers.checkout`` compiles (see its source).

{"tokens": [id, ...]} -> {"nll": [...]}, as ``llama_cpp_rows.py`` answers.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protocol import Answer, Reply, Settings, answer_requests, system


def load(settings: Settings) -> Answer:
    program = Path(sys.executable).with_name("ik_llama_cpp")
    sizes = [int(settings[name]) for name in ("threads", "context", "repack", "batch")]
    process = subprocess.Popen(
        [str(program), settings["model"], *map(str, sizes)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    asked, told = process.stdin, process.stdout

    def ask(*words: object) -> list[str]:
        print(*words, file=asked, flush=True)
        return line()

    def line() -> list[str]:
        found = told.readline()
        if not found:
            raise RuntimeError(f"ik_llama_cpp ended with status {process.wait()}; see the log")
        return found.split()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "tokens" in request:
            words = ask("score", len(request["tokens"]), *request["tokens"])
            return {"nll": list(map(float, words))}
        stops, prompt = request["stop_token_ids"], request["prompt_token_ids"]
        prefill, decode, *tokens = ask(
            "generate", request["max_tokens"], len(stops), *stops, len(prompt), *prompt
        )
        return asdict(Reply(list(map(int, tokens)), float(prefill), float(decode)))

    system["ik_llama.cpp"], _, system["info"] = " ".join(line()).partition(" ")
    return answer


if __name__ == "__main__":
    answer_requests(load, [])
