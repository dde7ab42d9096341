"""Methods side by side in one engine."""

from __future__ import annotations

from paradecode.llm import LLM
from paradecode_lab.measure.paired import decode_by_turns
from paradecode_lab.measure.prompts import Item


def test_greedy_runs_can_be_repeated(monkeypatch):
    """Some methods draw noise at temperature 0, too; without a seed it would be another one."""
    told, real = [], LLM.complete

    def complete(self, prompts, params, **how):
        told.append((params.temperature, params.seed, params.max_tokens))
        return real(self, prompts, params, **how)

    monkeypatch.setattr(LLM, "complete", complete)
    with LLM("paradecode/tiny-autoregressive", threads=1) as llm:
        ids = tuple(llm.chat_tokens([{"role": "user", "content": "copy: Ben Sam"}]))
        decode_by_turns(llm, [Item("a", "a", "g", ids, 6)], ["greedy", "jacobi"])
    assert told == [(0.0, 0, 6)] * 2
