"""Tasks with checkable answers, which show where parallel decoding fails and where it succeeds."""
