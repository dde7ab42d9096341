"""Comparing results and methods: only what was measured under the same conditions is compared."""

from dataclasses import replace

import pytest
from parallel_runs import good

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode_lab.measure.compare import changes, warnings
from paradecode_lab.measure.paired import decode_by_turns
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.report.compare import compare_files
from paradecode_lab.measure.result_files import write_results
from paradecode_lab.measure.results import Results


def batched(results: Results, *sizes: int, slower: float = 1.0) -> Results:
    """Return the same results at each of these batch sizes. Larger batches take longer."""
    records = tuple(
        replace(record, batch=size, decode_seconds=record.decode_seconds * size * slower)
        for size in sizes
        for record in results.records
    )
    return replace(results, records=records)


@pytest.fixture
def results(make_results) -> Results:
    return make_results({"plain": 100.0, "fast": 300.0}, rounds=1)


def test_speeds_of_batches_of_one_size_are_compared(results):
    before, now = batched(results, 1, 4), batched(results, 4, slower=0.5)
    for change in changes(before, now):
        assert change.speed.value == pytest.approx(2.0)
        assert change.items == len(results.items)
    assert warnings(before, now) == [
        "batch sizes were 1 and 4, now 4: compared are batches of 4",
    ]  # fmt: skip
    assert warnings(before, before) == []


def test_results_without_a_common_batch_size_are_refused(results):
    with pytest.raises(InvalidInput, match=r"batch: \[\[1, 2\], \[4\]\].*--batch 1"):
        changes(batched(results, 1, 2), batched(results, 4))


def test_other_conditions_of_the_parallel_suite_are_told(tmp_path):
    paths, before = (tmp_path / "before.json", tmp_path / "now.json"), good()
    now = replace(
        before, machine=replace(before.machine, cores=64), settings={**before.settings, "batch": 4}
    )
    for path, each in zip(paths, (before, now)):
        write_results(each, path)
    assert compare_files(*paths).warnings == [
        "machine.cores was 2, now 64", "settings.batch was 1, now 4",
    ]  # fmt: skip


def test_greedy_runs_can_be_repeated(monkeypatch):
    """A greedy run gets a seed, because some methods draw noise at temperature 0.

    Without a seed the noise would differ from run to run.
    """
    told, real = [], LLM.complete

    def complete(self, prompts, params, **how):
        told.append((params.temperature, params.seed, params.max_tokens))
        return real(self, prompts, params, **how)

    monkeypatch.setattr(LLM, "complete", complete)
    with LLM("paradecode/tiny-autoregressive", threads=1) as llm:
        ids = tuple(llm.chat_tokens([{"role": "user", "content": "copy: Ben Sam"}]))
        decode_by_turns(llm, [Item("a", "a", "g", ids, 6)], ["greedy", "jacobi"])
    assert told == [(0.0, 0, 6)] * 2
