"""Pictures, one chart a file: pure functions from figures and sheets to what matplotlib draws.

matplotlib (extra ``plots``) is imported only when something is drawn.
"""
