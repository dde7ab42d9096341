"""Runs a checkout of Paradecode through its public API, and times whole calls.

{"prompt", "max_tokens", "method", "salt"} -> {"seconds", "tokens": [id, ...]}
"""

from __future__ import annotations

import time
from typing import Any

from protocol import Answer, Settings, answer_requests


def load(settings: Settings) -> Answer:
    from paradecode import LLM

    llm = LLM(settings["model"] or None, decoder=None)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        begin = time.perf_counter()
        made = getattr(llm, "complete", llm.generate)(  # Checkouts of 0.1 have no ``complete``.
            asked["prompt"], max_tokens=asked["max_tokens"], decoder=asked["method"],
            salt=asked["salt"], seed=0, ignore_eos=True,
        )  # fmt: skip
        return {"seconds": time.perf_counter() - begin, "tokens": list(made.token_ids)}

    return answer


if __name__ == "__main__":
    answer_requests(load, ["paradecode"])
