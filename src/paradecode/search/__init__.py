"""Search: one request decodes many branches, which a strategy begins, compares and ends.

A branch is an ordinary request of the engine with a seed of its own. So it may use any method, and
it gets the same tokens as it would alone. Branches of one prompt share its K/V pages.
"""
