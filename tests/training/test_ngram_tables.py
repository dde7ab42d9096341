"""`paradecode train ngram-table`: tables from files and from own texts, and refused inputs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paradecode import LLM
from paradecode.cli import app
from paradecode.methods.choice import spec_for
from paradecode.methods.draft.ngram_table import load_ngrams, packaged
from paradecode_lab.training.heads.texts import TEXTS
from paradecode_lab.training.ngrams.own_text import before_the_user, own_answers

RUN = CliRunner()


@pytest.fixture(scope="module")
def llm():
    with LLM() as llm:
        yield llm


def test_the_default_method_uses_the_packages_table(llm: LLM) -> None:
    assert packaged(llm.model)
    assert dict(llm.decoder.settings) == {"table": llm.model}
    table = load_ngrams(llm.model)
    assert table.vocabulary == llm.config.vocab_size
    assert len(table.keys) > 10_000


@pytest.mark.parametrize("name", [
    "Qwen2.5 Coder 1.5B Instruct GGUF", "Qwen2.5-Coder-1.5B-Instruct",
    "Qwen/qwen2.5-coder-1.5b-instruct",
])  # fmt: skip
def test_a_table_is_found_however_files_spell_the_model(name: str) -> None:
    own = "qwen2.5-coder-1.5b-instruct"
    assert packaged(name) == own
    assert dict(spec_for("auto", name, ["autoregressive"]).settings) == {"table": own}
    assert load_ngrams(own).vocabulary > 150_000


@pytest.mark.parametrize(
    "name", ["", "..", "another model", "../tables/smollm2-135m-instruct.ngrams"]
)
def test_other_models_have_no_table(name: str) -> None:
    assert packaged(name) == ""


def test_a_conversation_ends_where_the_user_would_begin(llm: LLM) -> None:
    head = before_the_user(llm)
    assert llm.tokenizer.decode(head).endswith("user\n")
    whole = llm.chat_tokens([{"role": "user", "content": "Good day"}])
    assert whole[: len(head)] == head


def test_own_answers_repeat_and_differ(llm: LLM) -> None:
    told: list[tuple[int, int]] = []
    answers = own_answers(llm, 3, 12, 7, lambda *done: told.append(done))
    assert answers == own_answers(llm, 3, 12, 7, lambda *_: None)
    assert len({tuple(answer) for answer in answers}) == 3
    assert all(1 <= len(answer) <= 12 for answer in answers)
    assert told[-1] == (3, 3)


def test_a_table_of_files_drafts_what_they_say(llm: LLM, tmp_path: Path) -> None:
    text = tmp_path / "songs.txt"
    text.write_text("The zebra crossed the purple river at noon. " * 400, "utf-8")
    run = RUN.invoke(app, ["train", "ngram-table", str(tmp_path / "a.ngrams"), str(text)])
    assert run.exit_code == 0, run.output
    ids = llm.tokenizer.encode(" The zebra crossed the purple", special=False)
    table = load_ngrams(str(tmp_path / "a.ngrams"))
    found = table.after(tuple(ids[-3:]))
    assert llm.tokenizer.decode([found[0]]) == " river"


def test_a_table_counts_what_was_collected_for_heads(llm: LLM, tmp_path: Path) -> None:
    text = " The zebra crossed the purple river at noon."
    ids = llm.tokenizer.encode(text, special=False)
    entries = [{"prompt": [i + 1], "answer": ids, "greedy": True} for i in range(20)]
    (tmp_path / TEXTS).write_text(json.dumps({"texts": entries, "refused": 0}) + "\n", "utf-8")
    for folders in (1, 2):
        named = ["--data", str(tmp_path)] * folders
        run = RUN.invoke(app, ["train", "ngram-table", str(tmp_path / "a.ngrams"), *named])
        assert run.exit_code == 0, run.output
        assert f"{20 * folders * len(ids)} tokens" in run.output
    found = load_ngrams(str(tmp_path / "a.ngrams")).after(tuple(ids[2:5]))
    assert found[0] == ids[5]


def test_too_little_text_and_bad_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Hello.", "utf-8")
    for arguments, named in (
        ([str(tmp_path / "a.ngrams"), str(tmp_path / "short.txt")], "TEXTS: 1 "),
        ([str(tmp_path / "a.ngrams"), str(tmp_path / "none.txt")], "no such file"),
        ([str(tmp_path / "no" / "a.ngrams")], "OUTPUT"),
        ([str(tmp_path / "a.ngrams"), "--data", str(tmp_path / "no")], "train head"),
    ):
        run = RUN.invoke(app, ["train", "ngram-table", *arguments])
        assert run.exit_code != 0
        assert named in f"{run.output}{run.exception}"
    assert not (tmp_path / "a.ngrams").exists()
