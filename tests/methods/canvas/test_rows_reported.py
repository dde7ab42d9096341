"""``Stats.rows`` is the number of rows that the backend computed, for every cache and policy."""

from collections.abc import Sequence

import pytest
from canvases import ATTENTION, PROMPT, run_all

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import work
from paradecode.core.sampling import SamplingParams
from paradecode.methods.parts import known
from paradecode.testing.canvas_matrix import policies, spec
from paradecode.testing.toy import ToyBackend, toy_config


class Counting(ToyBackend):
    """A backend that counts rows times layers."""

    computed = 0.0

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        for span in spans:
            layers = self.config.layers if span.layers is None else work(span.layers)
            self.computed += len(span.positions) * layers
        return super().forward(spans)


def counts(method: str, kind: str, max_tokens: int = 24) -> tuple[float, float]:
    """Return the number of rows that were reported, and that of those computed."""
    backend = Counting(toy_config(**ATTENTION[kind]), surprise=700)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=2)
    (made,) = run_all(backend, [(method, PROMPT, params)])
    if isinstance(made.error, InvalidInput):
        pytest.skip(f"not with this model: {made.error}")
    assert made.error is None
    assert made.stats.rows == round(made.rows)
    return made.rows, backend.computed / backend.config.layers


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("cache", known("cache"))
def test_every_cache(cache: str, kind: str) -> None:
    reported, computed = counts(f"static(cache={cache},block_length=8)", kind)
    # A forward of some layers counts in part, and so does half a layer that looks at attention.
    assert reported == pytest.approx(computed)
    everything, _ = counts("static(block_length=8)", kind)
    assert (reported < everything) == (cache != "none")


@pytest.mark.parametrize("kind", ["full", "block-shift"])
@pytest.mark.parametrize("policy", [*policies(), "freedave-batch"])
def test_every_policy(policy: str, kind: str) -> None:
    """Each branch counts with its own rows; a pass through the head alone counts as none."""
    # The other forward of guided has keys of its own, and assd keeps what is final by itself.
    cache = "none" if policy in ("guided", "assd") else "dual"
    method = spec(policy.removesuffix("-batch"), "fixed", cache)
    if policy == "freedave-batch":
        method = method.replace("(", "(mode=batch,", 1)
    reported, computed = counts(method, kind)
    assert reported == computed
