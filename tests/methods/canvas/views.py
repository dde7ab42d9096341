"""Builds views from given predictions, to test what a policy decides from them."""

import numpy as np

from paradecode.core.logits import ArrayLogits
from paradecode.methods.canvas.canvas import Canvas, Progress, View, Window


def canvas_of(length: int, start: int = 0, vocabulary: int = 12) -> Canvas:
    """Return a canvas of masks behind a prompt of ``start`` zeros; the last token is the mask."""
    return Canvas(np.zeros(start, np.int32), length, vocabulary - 1)


def view_of(
    confidence: np.ndarray | None = None,
    *,
    start: int = 0,
    logits: np.ndarray | None = None,
    canvas: Canvas | None = None,
    window: tuple[int, int] | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> View:
    """Return a view of the whole output, from the best tokens' probabilities or from logits [K, V].

    With probabilities alone position k proposes token k % 11, and the other ten share the rest.
    """
    if logits is None:
        assert confidence is not None
        rest = (1.0 - np.asarray(confidence, np.float64))[:, None] / 10
        logits = np.log(np.broadcast_to(np.maximum(rest, 1e-300), (len(confidence), 11))).copy()
        best = np.arange(len(confidence)) % 11
        logits[np.arange(len(best)), best] = np.log(np.maximum(confidence, 1e-300))
        logits = np.concatenate([logits, np.full((len(best), 1), -np.inf)], axis=1)
    rows = ArrayLogits(logits)
    count = len(logits)
    canvas = canvas or canvas_of(count, start)
    positions = canvas.start + np.arange(count)
    span = window or (canvas.start, canvas.end)
    tokens = rows.argmax()
    sure = np.exp(rows.log_probability(tokens[:, None])[:, 0])
    if confidence is not None:
        sure = np.asarray(confidence, np.float64)
    return View(
        canvas=canvas, window=Window(*span), positions=positions, eligible=np.ones(count, bool),
        proposals=tokens, confidence=sure, logits=rows, raw=rows,
        progress=progress or Progress(count, canvas.steps, canvas.steps, count, count, 0),
        refresh=True, seed=seed,
    ).within(Window(*span))  # fmt: skip
