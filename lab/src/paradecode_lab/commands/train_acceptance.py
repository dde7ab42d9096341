"""`paradecode train acceptance-head`, `tree-selector` and `reward`.

These parts predict whether a draft will be accepted, or whether an answer will be right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paradecode.cli.options import Json, Loading, grouped, option
from paradecode.methods.specs import parse
from paradecode_lab.commands.train_steps import Output, S, Samples, logged, ready, trained


@dataclass(frozen=True)
class Drafts:
    """Options of the drafter whose drafts are recorded."""

    decoder: str = option("", "Record the drafts of this method.", "--decoder -d")
    draft_model: str | None = option(None, "Use this small draft model, if the method needs one.")

    @property
    def name(self) -> str:
        return parse(self.decoder).method.name


# The methods that are recorded by default; they need no second model.
CHAINS, TREES = Drafts("layer-skip(skip=0.1,width=1)"), Drafts("layer-skip(skip=0.1,width=4)")


@dataclass(frozen=True)
class Learning:
    """Options of the texts to learn from, and of the length of the training."""

    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: our prompts.")
    limit: int = option(0, "Use at most this many conversations; 0 uses all.", min=0)
    max_tokens: int = option(128, "Generate at most this many tokens of an answer.", min=1)
    temperature: float = option(0.0, "Temperature of the answers; 0 is greedy.")
    seed: int = option(0, "Seed of the answers, of the held-out part and of the weights.", min=0)
    samples: Samples = None
    epochs: int = option(20, "Number of passes over the samples.", min=1, max=10000)

    def logged(
        self,
        kind: type[S],
        loading: Loading,
        drafts: Drafts,
        record: Callable[..., S],
        **known: int,
    ) -> S:
        """Return samples of the drafts, read from a file or newly recorded.

        Args:
            kind: class of the samples.
            record: called with the model, the workload's items, the method, the sampling parameters
                and a progress function.
            known: facts that the samples in the file must have.
        """
        from paradecode_lab.training.acceptance.workload import DraftWorkload

        spec = parse(drafts.decoder)
        workload = DraftWorkload(
            self.prompts, self.limit, self.max_tokens, self.temperature, self.seed
        )
        workload.check()
        params = workload.params()
        with loading.open(decoder=spec, draft_model=drafts.draft_model) as llm:
            return logged(
                kind, self.samples, workload.origin(llm, spec),
                lambda tick: record(llm, workload.items(llm), spec, params, tick), **known,
            )  # fmt: skip


@grouped
def acceptance_head(
    output: Output,
    loading: Loading,
    learning: Learning,
    drafts: Drafts = CHAINS,
    blocks: int = option(3, "Number of residual blocks.", min=0, max=16),
    rejection_weight: float = option(
        6.0, "Weight of a rejected token in the loss.", min=0.01, max=1000
    ),
    as_json: Json = False,
) -> None:
    """Train SpecDec++'s head, which predicts acceptance, for `acceptance_head=FILE`."""
    ready(output, learning.samples)
    from paradecode_lab.training.acceptance.head_fit import HeadSettings, fit_head
    from paradecode_lab.training.acceptance.head_samples import HeadSamples, record_head_samples

    samples = learning.logged(HeadSamples, loading, drafts, record_head_samples)
    settings = HeadSettings(blocks, rejection_weight, epochs=learning.epochs, seed=learning.seed)
    use = f"{drafts.name}(budget='specdec++',acceptance_head='{output}')"
    trained(output, use, partial(fit_head, samples, settings), as_json)


@grouped
def tree_selector(
    output: Output,
    loading: Loading,
    learning: Learning,
    drafts: Drafts = TREES,
    as_json: Json = False,
) -> None:
    """Train the selector of delayed trees' shapes, for `tree_selector=FILE`."""
    ready(output, learning.samples)
    from paradecode_lab.training.acceptance.selector_fit import SelectorSettings, fit_selector
    from paradecode_lab.training.acceptance.selector_samples import (
        SelectorSamples,
        record_selector_samples,
    )
    from paradecode_lab.training.acceptance.workload import draft_size, drafting

    count = draft_size(drafting(parse(drafts.decoder)))
    record = record_selector_samples
    samples = learning.logged(SelectorSamples, loading, drafts, record, count=count)
    settings = SelectorSettings(epochs=learning.epochs, seed=learning.seed)
    use = f"{drafts.name}(budget='delayed',tree_selector='{output}')"
    trained(output, use, partial(fit_selector, samples, settings), as_json)


@grouped
def reward(
    output: Output,
    loading: Loading,
    task: list[str] = option(["sums"], "Use this task with checkable answers; repeat for more."),
    limit: int = option(60, "Number of instances of the tasks.", min=3, max=100000),
    answers: int = option(4, "Number of answers to each instance.", min=1, max=64),
    cuts: int = option(4, "Continue an answer from this many places.", min=1, max=64),
    rollouts: int = option(4, "Number of continuations from each place.", min=1, max=64),
    temperature: float = option(0.8, "Sampling temperature of answers and continuations."),
    max_tokens: int = option(96, "Generate at most this many tokens of an answer.", min=2),
    seed: int = option(0, "Seed of the answers, of the held-out part and of the weights.", min=0),
    blocks: int = option(0, "Residual blocks; with 0 the head is logistic.", min=0, max=16),
    epochs: int = option(40, "Number of passes over the samples.", min=1, max=10000),
    samples: Samples = None,
    as_json: Json = False,
) -> None:
    """Train a process reward, which rates how likely a partial answer becomes a right one."""
    ready(output, samples)
    from paradecode.search.scorers.reward_model import RewardHead
    from paradecode_lab.training.acceptance.head_fit import HeadReport, HeadSettings, fit_head
    from paradecode_lab.training.acceptance.head_samples import HeadSamples
    from paradecode_lab.training.decoding import Progress
    from paradecode_lab.training.reward.samples import RewardWorkload, record_reward_samples

    workload = RewardWorkload(
        tuple(task), limit, answers, cuts, rollouts, temperature, seed, max_tokens
    )
    workload.params(0)  # Refuse a bad setting before a model is loaded.
    settings = HeadSettings(blocks, rejection_weight=1.0, epochs=epochs, seed=seed)
    with loading.open() as llm:
        found = logged(
            HeadSamples,
            samples,
            workload.origin(llm),
            partial(record_reward_samples, llm, workload),
        )

    def fit(tick: Progress) -> tuple[RewardHead, HeadReport]:
        head, report = fit_head(found, settings, tick)
        return RewardHead(head.facts, head.tensors), report

    trained(output, f"process-reward(path='{output}')", fit, as_json)
