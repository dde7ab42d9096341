"""The page about combinations of canvas parts agrees with the registry and the caches."""

import json

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.parts import known
from paradecode.testing.canvas_matrix import (
    ATTENTION,
    _decode,
    combinations,
    policies,
    refusal,
    spec,
)
from repository import ROOT
from tools.pages.canvas_matrix_page import text

RESULTS = json.loads((ROOT / "bench/results/diffusion_matrix.json").read_text("utf-8"))
REFUSED = {tuple(parts): reason for *parts, reason in RESULTS["refused"]}


def test_the_page_is_what_the_results_say() -> None:
    assert text(RESULTS) in (ROOT / "docs/diffusion.md").read_text("utf-8")


def test_the_results_are_of_every_part_there_is() -> None:
    assert RESULTS["policies"] == policies()
    assert RESULTS["blocks"] == [*known("blocks")]
    assert RESULTS["caches"] == [*known("cache")]
    assert RESULTS["attention"] == [*ATTENTION]
    everywhere = sum(kind == "any" for *_, kind in REFUSED)
    cases = (len([*combinations()]) - everywhere) * len(ATTENTION)
    assert RESULTS["ran"] == cases - (len(REFUSED) - everywhere)


def test_the_registry_refuses_those_and_no_others() -> None:
    for parts in combinations():
        assert REFUSED.get((*parts, "any")) == refusal(*parts), parts


@pytest.mark.parametrize("kind", ATTENTION)
def test_caches_refuse_models_and_policies_do_not(kind: str) -> None:
    block = {"full": 0, "causal": 1}.get(str(ATTENTION[kind].get("attention", "causal")), 4)
    for name, cache in known("cache").items():
        reason = None
        try:
            cache.build().start(Canvas(np.arange(4, 9, dtype=np.int32), 8, 28, block))
        except InvalidInput as error:
            reason = error.fix
        for parts in combinations():
            if parts[2] == name and (*parts, "any") not in REFUSED:
                assert REFUSED.get((*parts, kind)) == reason, (parts, kind)


@pytest.mark.parametrize("kind", ATTENTION)
def test_some_run_again(kind: str) -> None:
    from paradecode.methods.specs import parse

    for parts in [("static", "fixed", "two_level"), ("freedave", "lead", "dual")]:
        assert _decode(parse(spec(*parts)), kind) == REFUSED.get((*parts, kind))
