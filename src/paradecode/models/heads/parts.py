"""Components from which heads of several kinds are built: inputs, embeddings, norms, LM heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.core.network import Array, Network
from paradecode.models.config import ModelConfig
from paradecode.models.heads.layouts import HeadFile, d2t_of
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder

Target = Callable[[str], Array]
"""The target's float32 tensors, by the names of ``ModelConfig.tensors``."""


@dataclass(frozen=True)
class HeadParts:
    """The file, the target and the tensors from which a head is built."""

    file: HeadFile
    config: ModelConfig
    target: Target
    vocabulary: int
    t: HeadTensors

    def enter_last(self, normed: bool = True) -> Network:
        """Build the network from features to states, for features of the target's last layer.

        It applies the target's final norm if ``normed``.
        """
        width = self.config.hidden_size
        steps = NetworkBuilder(features=width)
        if normed:
            steps.norm("features", self.final_gain(), self.config.norm_eps)
        else:
            steps.same("features", width)
        return steps.network()

    def final_gain(self) -> Array:
        """Return the gain of the target's final norm."""
        name = "verifier_norm.weight"
        return self.t(name, self.config.hidden_size) if name in self.t else self.target("norm")

    def of_target(self, name: str, *shape: int) -> Array:
        """Return a tensor of the target, or the copy in the head's file if it has one."""
        own = f"verifier_{name}"
        return self.t(own, *shape) if own in self.t else self.target(name)

    def enter_taps(self) -> tuple[tuple[int, ...], NetworkBuilder]:
        """Return the tapped layers, and the builder with the network ``fc`` of their features."""
        file, t, hidden = self.file, self.t, self.config.hidden_size
        taps = file.taps or (1, self.config.layers // 2 - 1, self.config.layers - 4)
        if min(taps) < 0 or max(taps) >= self.config.layers:
            raise InvalidModel("aux_hidden_state_layer_ids", taps, "the target lacks these layers")
        steps = NetworkBuilder(features=hidden * len(taps))
        features = "features"
        if "input_norm.weight" in t:
            gain = t("input_norm.weight", hidden * len(taps))
            features = steps.norm(features, gain, file.epsilon)
        if "fc_norm.0.weight" in t:
            gains = [t(f"fc_norm.{tap}.weight", hidden) for tap in range(len(taps))]
            features = steps.norm_each(features, gains, file.epsilon)
        weight = t("fc.weight", -1, hidden * len(taps))
        steps.linear(features, weight, t.maybe("fc.bias", len(weight)))
        return taps, steps

    def embedded(self, steps: NetworkBuilder) -> str:
        name = "embed_tokens.weight"
        rows = self.t(name, -1, -1) if name in self.t else self.target("embed")
        if len(rows) < max(self.config.vocab_size, self.file.mask_token + 1):
            fix = f"the target has {self.config.vocab_size} tokens"
            raise InvalidModel(name, rows.shape, f"{fix}, and masks token {self.file.mask_token}")
        return steps.add("lookup", "token", tensor=rows)

    def out(self, width: int, normed: bool) -> tuple[Network, NDArray[np.int32] | None]:
        """Build the network from a state to logits; also return the target's ids of its tokens."""
        steps = NetworkBuilder(state=width)
        x = self.norm(steps, "state", width) if normed else "state"
        rows, ids = self.kept("lm_head.weight", width)
        steps.linear(x, rows)
        return steps.network(), ids

    def norm(self, steps: NetworkBuilder, x: str, width: int) -> str:
        return steps.norm(x, self.t.gain("norm.weight", width), self.file.epsilon)

    def back(self, width: int) -> Network | None:
        """Build the network that makes a draft's next input from a state; None keeps the state."""
        if not self.file.feeds_normed:
            return None
        steps = NetworkBuilder(state=width)
        self.norm(steps, "state", width)
        return steps.network()

    def kept(self, name: str, width: int) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
        """Return the rows of an LM head that may be guessed, and their token ids.

        The ids are None if they are the row indices.
        """
        if name in self.t:
            rows = self.t(name, -1, width)
        elif "verifier_lm_head.weight" in self.t:
            rows = self.t("verifier_lm_head.weight", -1, width)
        else:
            rows = self.target("embed" if self.config.tied_head else "head")
        ids = d2t_of(self.t("d2t", -1)) if "d2t" in self.t else None
        known = self.config.vocab_size
        if name not in self.t:
            if ids is None:
                rows = rows[:known]
            elif ids[-1] < known <= len(rows):  # The target's own.
                rows = rows[ids]
        if ids is not None and len(ids) != len(rows):
            raise InvalidModel("d2t", len(ids), f"the LM head has {len(rows)} rows")
        if (len(rows) - 1 if ids is None else ids[-1]) >= known:
            field = (name, len(rows)) if ids is None else ("d2t", int(ids[-1]))
            raise InvalidModel(*field, f"the target has {known} tokens")
        if 0 < self.vocabulary < len(rows):
            lowest = np.arange(self.vocabulary, dtype=np.int32)
            return rows[: self.vocabulary], lowest if ids is None else ids[: self.vocabulary]
        return rows, ids
