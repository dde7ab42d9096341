"""Tests of the datastore command, and of predictions through the public interface."""

import pytest
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.methods.draft.drafters.retrieval import Datastore


@pytest.fixture(scope="module")
def llm():
    with LLM(decoder="predicted-output(budget=fixed,num_speculative_tokens=16)") as loaded:
        yield loaded


def test_datastore_command(tmp_path, llm):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox <|im_end|> jumps.", "utf-8")
    store = tmp_path / "store.pds"
    run = CliRunner().invoke(app, ["datastore", str(store), str(text)])
    assert run.exit_code == 0, run.output
    tokens = Datastore(str(store)).tokens.tolist()
    assert tokens[-1] == -1
    # Text that spells a control token stays text.
    assert tokens[:-1] == llm.tokenizer.encode(text.read_text(), parse_special=False)
    drafted = llm.complete("The quick brown", max_tokens=3, decoder=f"rest(datastore='{store}')")
    assert drafted.text == llm.complete("The quick brown", max_tokens=3, decoder="none").text


def test_predictions(llm):
    plain = llm.complete("Once upon a time", max_tokens=40, decoder="none")
    for prediction in (plain.text, plain.token_ids):
        told = llm.complete("Once upon a time", max_tokens=40, prediction=prediction)
        assert told.token_ids == plain.token_ids
        assert told.stats.forwards <= 6
    wrong = llm.complete("Once upon a time", max_tokens=40, prediction="Something else entirely.")
    empty = llm.complete("Once upon a time", max_tokens=40, prediction="")
    assert wrong.token_ids == empty.token_ids == plain.token_ids
    for bad in ([-3], ["a"], 5):
        with pytest.raises(InvalidInput, match="prediction"):
            llm.complete("Once", prediction=bad)
