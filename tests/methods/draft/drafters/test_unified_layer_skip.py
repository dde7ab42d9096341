"""Unified layer skipping: all layers read the prompt, evenly spread ones decode."""

from __future__ import annotations

from drafting import Request, certain, reply_to

from paradecode.core.decoder import ModelFacts
from paradecode.methods.draft.drafters.layer_skip import spread
from paradecode.methods.specs import parse


def test_unified_layer_skipping_leaves_layers_out_behind_the_prompt():
    class Twelve(Request):
        def about(self, model="target"):
            return ModelFacts(layers=12, hidden_size=1, vocab_size=32)

    seq = Twelve([1, 2, 3], max_tokens=4)
    steps, layers = parse("unified-layer-skip(speedup=3)")().decode(seq), []
    forward = next(steps)
    while not seq.finished:
        layers.append(forward.layers)
        try:
            forward = steps.send(reply_to(seq, forward.tree, certain(lambda text: 5)))
        except StopIteration:
            break
    assert layers == [None, *[spread(12, 4)] * 3]
