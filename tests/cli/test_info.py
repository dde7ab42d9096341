"""Tests of `paradecode info`, with and without `--profile`, and of `paradecode doctor`."""

import json

import pytest

from paradecode.cli import information
from program import paradecode

TINY = ("--model", "paradecode/tiny-autoregressive")


def test_phases_stand_beside_their_floors() -> None:
    profile = json.loads(paradecode("info", "--profile", "--json", *TINY).stdout)["profile"]
    assert profile["context"] == 240  # The largest context that leaves room for 16 more tokens.
    assert profile["rows"] == [1, 2, 4, 8, 16]
    assert profile["milliseconds"].keys() == profile["floors"].keys()
    for phase in ("qkv", "attention", "output", "gate+up", "down", "head"):
        for least, taken in zip(profile["floors"][phase], profile["milliseconds"][phase]):
            assert 0 < least < 10
            assert 0 < taken < 1e4
    # Sixteen rows make sixteen times the products of one row, and read the weights once.
    for one, sixteen in ((column[0], column[-1]) for column in profile["floors"].values()):
        assert one <= sixteen <= 16.1 * one
    assert profile["floors"]["swiglu"] == [0.0] * 5
    table = paradecode("info", "--profile", *TINY).stdout
    assert "at least" in table
    assert max(map(len, table.split("Milliseconds")[1].splitlines())) <= 80


def test_it_is_text() -> None:
    said = paradecode("info").stdout
    assert "native core: " in said
    assert "{" not in said


def test_the_doctor_says_what_nothing_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(paradecode("doctor", "--json").stdout)
    assert {"native core", "cores", "other processes", "default model", "torch"} <= {
        each["part"] for each in found
    }
    assert all(each["fix"] for each in found if each["state"] != "good")
    monkeypatch.setattr(information, "core_is_built", lambda: False)
    monkeypatch.setattr(information, "version_of", lambda package: None)
    run = paradecode("doctor")
    assert run.returncode == 1
    assert "wrong   native core: none" in run.stdout
    assert "install a C++ compiler" in run.stdout
    assert 'pip install -e ".[constraints]" in the checkout' in run.stdout
