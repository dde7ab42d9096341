"""Train a draft head. The training can be stopped and continued at any step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paradecode.backends.torch.model import Transformer
from paradecode.core.errors import InvalidInput
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.heads import HeadFile
from paradecode.models.heads.files import write_head
from paradecode_lab.measure import machine
from paradecode_lab.training.heads.chimera import ChimeraNetwork
from paradecode_lab.training.heads.clover import CloverNetwork
from paradecode_lab.training.heads.dovetail import DovetailNetwork
from paradecode_lab.training.heads.falcon import FalconNetwork
from paradecode_lab.training.heads.features import Features
from paradecode_lab.training.heads.initial import (
    EXITS,
    OF_ROWS,
    HeadShape,
    begun_with,
    common_tokens,
    new_head,
)
from paradecode_lab.training.heads.longspec import KEPT, LongSpecNetwork
from paradecode_lab.training.heads.m2r2 import StreamNetwork
from paradecode_lab.training.heads.network import HeadNetwork, Target, for_features
from paradecode_lab.training.heads.objective import (
    TEXTS_TOGETHER,
    Acceptance,
    HeadBatch,
    acceptance,
    batch_of,
    loss_of,
)
from paradecode_lab.training.heads.row_networks import (
    FlexDraftNetwork,
    PromptNetwork,
    TransferNetwork,
)
from paradecode_lab.training.heads.texts import HeadText
from paradecode_lab.training.running import (
    Training,
    check_same,
    descend,
    load_checkpoint,
    readable,
    restore,
)

HEAD = "head"
NETWORKS = {"clover": CloverNetwork, "clover-2": CloverNetwork, "falcon": FalconNetwork,
            "chimera": ChimeraNetwork, "longspec": LongSpecNetwork, "dovetail": DovetailNetwork,
            "m2r2": StreamNetwork, "ppd": PromptNetwork, "hidden-transfer": TransferNetwork,
            "flexdraft": FlexDraftNetwork}  # fmt: skip
"""Method -> network of its head, for methods that :class:`HeadNetwork` does not fit."""
WITHOUT_ROWS = ("medusa", "clover", "kangaroo", "m2r2", "chimera", "longspec")
"""Methods whose files contain no rows of the target's LM head."""
WARMUP = 100
"""The most steps in which the learning rate rises; at most a tenth of all steps."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class HeadPlan:
    """Settings of a head's training.

    Attributes:
        steps: number of optimiser steps.
        batch: number of texts in a step.
        rate: highest learning rate of AdamW. The rate rises in the first steps and falls to 0 in
            the last ones.
        cooldown: share of the steps in which the rate falls.
        levels: number of trained levels. A head sees its own states from the second level on.
        decay: weight of a level's loss relative to the level before it.
        averaging: decay per step of the weights' moving average, which is evaluated and written. A
            higher value averages over more steps.
        seed: seed of weights and batches.
    """

    steps: int = 2000
    batch: int = 16
    rate: float = 1e-3
    cooldown: float = 0.3
    levels: int = 3
    decay: float = 0.8
    averaging: float = 0.995
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        rise = (step + 1) / max(1.0, min(0.1 * self.steps, WARMUP))
        fall = (self.steps - step) / max(1.0, self.cooldown * self.steps)
        return self.rate * min(1.0, rise, fall)


class HeadTraining(Training):
    """A head that is being trained.

    Args:
        shape: sizes of the head.
        plan: settings of the training.
        target: the target model.
        features: states of the texts.
        held_out: number of texts, from the first on, that are not trained on.
        most: number of the other texts that are used; None uses all.
        before: a head with whose weights the training begins.
        device: device of the training.

    Attributes:
        head: a network with the average of the weights, which is evaluated and written.
        held_out: indices of the held-out texts that are greedy.
        bits: bits of a number in the written head: 16, or 8, which only this engine reads.
        coverage: share of the tokens in held-out answers that can be drafted.

    Raises:
        InvalidInput: there are too few texts, or no held-out text is greedy.
    """

    def __init__(
        self, shape: HeadShape, plan: HeadPlan, target: Checkpoint, features: Features,
        held_out: int, most: int | None = None, before: HeadFile | None = None,
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        self.bits, self.device = 16, device
        self.shape, self.plan, self.features = shape, plan, features
        self.steps, self._config = plan.steps, target.config
        texts = features.texts
        if len(texts) - held_out < 1 or held_out < 1:
            raise InvalidInput("texts", len(texts), "too few: give more prompts, or more --own")
        self._trained = texts[held_out:][:most]
        self._first, vocabulary = held_out, target.config.vocab_size
        ids = common_tokens(self._trained, shape.vocabulary, vocabulary)
        self._numbers = np.full(vocabulary, -1, np.int64)
        self._numbers[ids] = np.arange(len(ids))
        self.held_out = [i for i in range(held_out) if texts[i].greedy]
        if not self.held_out:
            raise InvalidInput("texts", held_out, "no held-out answer is greedy: hold out more")
        ends = [self._numbers[texts[i].tokens[texts[i].start :]] >= 0 for i in self.held_out]
        self.coverage = float(np.concatenate(ends).mean())
        weights = target.weights
        rows = weights["embed" if target.config.tied_head else "head"].float32()[ids]
        last = f"layers.{target.config.layers - 1}."
        kept = [n for n in KEPT if shape.method == "longspec" and f"{last}{n}" in weights]
        with device:
            shared = Target(
                torch.tensor(weights["embed"].float32()), torch.tensor(weights["norm"].float32()),
                torch.tensor(rows), target.config.norm_eps,
                Transformer(target.config, weights, torch.float32, device)
                if shape.method in (*OF_ROWS, "m2r2") else None,
                {n: torch.tensor(weights[f"{last}{n}"].float32()) for n in kept},
                target.config.context_length,
            )  # fmt: skip
        self._file = new_head(shape, target, ids, plan.seed)
        scale = torch.ones(0)
        if "fc.weight" in self._file.tensors:
            sample = range(held_out, min(held_out + TEXTS_TOGETHER, len(texts)))
            drawn = self._batch(sample).rows.features.unflatten(-1, (len(self._file.taps), -1))
            sizes = drawn.square().mean((0, 2), keepdim=True).sqrt().clamp(min=1e-6)
            scale = (1 / sizes).expand(-1, -1, drawn.shape[-1]).flatten()
        scale = scale.to(device)
        if before is not None:
            begun = begun_with(self._file, before)
            taken = for_features(begun.kind, begun.tensors, (1 / scale).cpu().numpy())
            self._file = replace(begun, tensors=taken)
        network = NETWORKS.get(shape.method, HeadNetwork)
        with device:
            self._live = network(self._file, shared, scale)
            self.head = network(self._file, shared, scale)
        for tensor in self._live.parameters.values():
            tensor.requires_grad_()
        self._optimizer = torch.optim.AdamW(
            self._live.parameters.values(), plan.rate, (0.9, 0.95), weight_decay=0.0
        )
        digest = blake2b(digest_size=16)
        for text in texts[: held_out + len(self._trained)]:
            digest.update(text.tokens.tobytes())
        self._digest = digest.hexdigest()
        self._maker = ThreadPoolExecutor(1)
        self._ahead: Future[HeadBatch] | None = None
        first = blake2b(digest_size=16)
        for tensor in before.tensors.values() if before is not None else ():
            first.update(tensor.tobytes())
        self._before = first.hexdigest()
        self._target = machine.digest(Path(target.source))

    @property
    def tokens(self) -> int:
        """Number of answer tokens in the training texts."""
        return sum(len(text.tokens) - text.start for text in self._trained)

    @property
    def parameters(self) -> int:
        """Number of the head's parameters."""
        return sum(tensor.numel() for tensor in self.head.parameters.values())

    def advance(self) -> float:
        """Do one optimiser step, and return the loss."""
        plan = self.plan
        self._live.progress = self.step / self.steps
        self._live.random = np.random.default_rng((plan.seed, self.step))
        batch = self._ahead.result() if self._ahead else self._batch(self._chosen())
        with self.device, torch.autocast(self.device.type, torch.bfloat16):
            loss = loss_of(self._live, batch, self._levels(), plan.decay)
        torch.autograd.backward(loss)
        descend(self._optimizer, plan.rate_at(self.step))
        self.step += 1
        # In the first steps the average forgets faster, because few weights have been averaged yet.
        keep = min(plan.averaging, self.step / (self.step + 9))
        with torch.no_grad():
            for name, tensor in self._live.parameters.items():
                self.head.parameters[name].lerp_(tensor, 1 - keep)
        # The next batch is made while a device still computes this step.
        more = self.step < self.steps
        self._ahead = self._maker.submit(self._batch, self._chosen()) if more else None
        return loss.item()

    def _levels(self) -> int:
        if self.shape.method in EXITS:
            return 1  # All levels guess the same: the layers read every draft token.
        return self.head.heads or self.plan.levels

    def _chosen(self) -> list[int]:
        """Return the indices of this step's texts.

        All texts come once in a random order, then once in another order, and so on.
        """
        count, batch = len(self._trained), self.plan.batch
        places = range(self.step * batch, (self.step + 1) * batch)
        orders = {
            turn: np.random.default_rng((self.plan.seed, turn)).permutation(count)
            for turn in {place // count for place in places}
        }
        return [self._first + int(orders[place // count][place % count]) for place in places]

    def _batch(self, wanted: Sequence[int]) -> HeadBatch:
        texts = [self.features.texts[i] for i in wanted]
        return self.batch(texts, self.features.of(wanted))

    def batch(self, texts: Sequence[HeadText], states: Sequence[NDArray[np.float16]]) -> HeadBatch:
        """Make a batch of texts; ``states`` come from ``Features``."""
        layers = self.features.layers
        taps = [tap % self._config.layers for tap in self.shape.tapped(self._config)]
        with self.device:
            return batch_of(texts, states, layers, taps, self._numbers)

    def run(self, *given: Any, **options: Any) -> bool:
        """See :class:`Training`."""
        try:
            return super().run(*given, **options)
        finally:
            self._settle()  # The caller may close the model.

    def _settle(self) -> None:
        """Wait for the next batch, because only one thread at a time may read texts."""
        if self._ahead is not None:
            wait([self._ahead])

    def evaluate(self) -> Acceptance:
        """Return the acceptance on held-out texts."""
        self._settle()
        parts = range(0, len(self.held_out), TEXTS_TOGETHER)
        batches = (self._batch(self.held_out[first : first + TEXTS_TOGETHER]) for first in parts)
        with self.device:
            return acceptance(self.head, batches)

    def state(self) -> dict[str, Any]:
        return {
            "plan": asdict(self.plan), "shape": repr(self.shape), "texts": self._digest,
            "target": self._target, "from": self._before, "step": self.step,
            "weights": {n: t.detach() for n, t in self._live.parameters.items()},
            "average": self.head.parameters, "optimizer": self._optimizer.state_dict(),
        }  # fmt: skip

    def save(self, path: Path) -> None:
        """Write a checkpoint, and export the present head."""
        super().save(path)
        self.export(path.parent)

    def stored(self) -> HeadFile:
        """Return the trained head, with its tensors in float16."""
        tensors: dict[str, NDArray[Any]] = {"d2t": self._file.tensors["d2t"]}
        tensors |= {n: t.astype(np.float16) for n, t in self.head.stored().items()}
        if self.bits == 16 and self.shape.method not in WITHOUT_ROWS:
            # Other engines expect the rows of the LM head in the file.
            rows = self.head.target.rows.cpu().numpy()
            tensors.setdefault("lm_head.weight", rows.astype(np.float16))
        return replace(self._file, tensors=tensors)

    def export(self, folder: Path) -> None:
        """Write the head into the folder HEAD inside ``folder``."""
        config = self._config
        sizes = {
            "hidden_size": config.hidden_size, "vocab_size": config.vocab_size,
            "max_position_embeddings": config.context_length, "hidden_act": "silu",
        }  # fmt: skip
        write_head(self.stored(), folder / HEAD, sizes, bits=self.bits)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same plan, shape and texts.

        ``steps`` and ``cooldown`` may differ as long as the learning rate has not begun to fall.

        Raises:
            InvalidModel: the file is damaged.
            InvalidInput: the checkpoint belongs to another run.
        """
        state = load_checkpoint(path, self.device)
        with readable(path):
            begun = {**state["plan"], "shape": state["shape"], "texts": state["texts"]}
            for name, ours in (("target", self._target), ("from", self._before)):
                begun[name] = state.get(name, ours)  # Older checkpoints lack it.
            step, fall = int(state["step"]), 1 - max(float(begun["cooldown"]), self.plan.cooldown)
            free = step <= fall * min(int(begun["steps"]), self.plan.steps)
        now = {**asdict(self.plan), "shape": repr(self.shape), "texts": self._digest}
        now |= {"target": self._target, "from": self._before}
        if free:
            now = {n: v for n, v in now.items() if n not in ("steps", "cooldown")}
        check_same(path, now, begun, ": name a new folder")
        with readable(path):
            weights, average, optimizer = (state[n] for n in ("weights", "average", "optimizer"))
        pairs = [(self._live.parameters, weights), (self.head.parameters, average)]
        restore(path, pairs, [(self._optimizer, optimizer)])
        self._settle()
        self.step, self._ahead = step, None


def layers_of(taps: Sequence[int], layers: int) -> tuple[int, ...]:
    """Return the layers whose states a head's training needs, ascending: its taps and the last."""
    return tuple(sorted({*(tap % layers for tap in taps), layers - 1}))


WINDOW, SHOWN = 32, 64
"""Number of tokens that are used of an answer.

One step trains on WINDOW tokens of a text. Evaluation uses SHOWN tokens of a held-out text.
"""


class RowTraining(HeadTraining):
    """Training of a head that is a ``RowNetwork``."""

    def stored(self) -> HeadFile:
        whole = {n: t for n, t in self._file.tensors.items() if t.dtype.kind != "f"}
        made = {n: t.astype(np.float16) for n, t in self.head.stored().items()}
        return replace(self._file, tensors=whole | made)

    def _batch(self, wanted: Sequence[int]) -> HeadBatch:
        texts = [self._part(number) for number in wanted]
        kept = zip(self.features.of(wanted), texts)
        return self.batch(texts, [states[: len(text.tokens)] for states, text in kept])

    def _part(self, number: int) -> HeadText:
        text = self.features.texts[number]
        begin, end = text.start, text.start + SHOWN
        if number >= self._first:
            random = np.random.default_rng((self.plan.seed, self.step, number))
            begin += int(random.integers(max(len(text.tokens) - begin - WINDOW, 1)))
            end = begin + WINDOW
        return HeadText(text.tokens[:end], begin, text.greedy)
