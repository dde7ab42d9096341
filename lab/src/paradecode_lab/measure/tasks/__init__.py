"""Tasks with checkable answers, on which decoding in parallel can be seen to fail or not."""
