"""Search many sequences for one request: strategies begin, compare and end branches.

A branch is an ordinary request of the engine with a seed of its own. So it may use any method, and
its tokens are those that it would have alone. Branches of one prompt share its K/V pages.
"""
