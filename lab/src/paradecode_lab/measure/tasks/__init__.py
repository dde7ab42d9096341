"""Tasks with checkable answers, on which parallel decoding visibly fails or succeeds."""
