"""CCD commits those predictions together that agree over several steps."""

import numpy as np
from views import canvas_of, view_of

from paradecode.methods.canvas.canvas import Progress
from paradecode.methods.canvas.policies.credit import Coherent


def follow(policy: Coherent, rows: list[np.ndarray], masks: int = 12) -> list[list[int]]:
    """Return the commits of a policy in each step, whose view has the given logits [masks, V]."""
    canvas = canvas_of(masks)
    policy.start(canvas)
    made = []
    for step, logits in enumerate(rows):
        if not canvas.masked.any():
            break
        progress = Progress(masks, step, step, masks, masks, 0)
        view = view_of(logits=logits, canvas=canvas, progress=progress)
        commit = policy.decide(view).commit
        canvas.commit(commit, view.proposals[commit])
        made.append(commit.tolist())
    return made


def constant(masks: int = 12, seed: int = 0) -> list[np.ndarray]:
    rows = np.random.default_rng(seed).normal(size=(masks, 12)) * 6
    rows[:, 11] = -np.inf
    return [rows] * masks


def test_paper_form_waits_for_its_history_then_commits_what_agrees() -> None:
    rows = constant()
    entropy = view_of(logits=rows[0]).entropy
    order = np.argsort(entropy, kind="stable").tolist()
    made = follow(Coherent(depth=3, width=4, entropy=100.0), rows)
    # Two steps fill the history; of the top 4 of the third step two were there all along.
    assert made[:3] == [[order[0]], [order[1]], sorted(order[2:4])]
    assert len(made) < 12
    never = follow(Coherent(depth=3, width=4, entropy=1e-9), rows)
    assert [len(step) for step in never] == [1] * 12


def test_paper_form_ranks_by_the_mean() -> None:
    """A position whose token changes is ranked below one that is less sure but keeps its token."""
    flips, steady = np.zeros((2, 12)), np.zeros((2, 12))
    steady[:, 3] = 3.6
    flips[0, 4] = flips[1, 5] = 4.0
    rest = np.zeros((2, 12))
    sure = np.eye(12)[[7, 7]] * 9.0
    rows = [np.stack([sure[i], flips[i], steady[i], rest[i]]) for i in range(2)]
    assert follow(Coherent(depth=2, seek=False), rows, 4) == [[0], [2]]
    assert follow(Coherent(depth=1, seek=False), rows, 4) == [[0], [1]]


def test_released_form_grows_after_the_warm_up() -> None:
    """With predictions that never change, five steps commit 1 token each, later ones more.

    A later step commits as many positions as were remembered.
    """
    made = follow(Coherent(form="released", width=4), constant(40), 40)
    # Step 5 sees the 2 of step 4, step 6 the 3 of step 5, ... up to 1 + 4; late ones fewer.
    assert [len(step) for step in made[:9]] == [1, 1, 1, 1, 1, 2, 3, 4, 5]
    assert len(made[9]) == 5
    assert sum(map(len, made)) == 40
    left = 40 - sum(map(len, made[:-1]))
    assert len(made[-1]) == left


def test_released_form_needs_the_same_tokens() -> None:
    """Tokens that change in every step are never committed together."""
    rows = constant(30)[0]
    rolled = [np.concatenate([np.roll(rows[:, :11], i, axis=1), rows[:, 11:]], axis=1)
              for i in range(30)]  # fmt: skip
    assert {len(step) for step in follow(Coherent(form="released"), rolled, 30)} == {1}
