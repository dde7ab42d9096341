"""Many sequences for one request: strategies that begin, compare and end branches.

A branch is an ordinary request of the engine with a seed of its own, so it may use any method, and
its tokens are those that it would have alone. Branches of one prompt share its K/V pages.
"""

from paradecode.search.branch import (
    Branch,
    Grow,
    Rate,
    Searched,
    SearchTask,
    Start,
    Strategy,
)
from paradecode.search.completion import completion_of_search
from paradecode.search.run import SearchRun
from paradecode.search.scorers.scorer import Scorer, find_scorer, scorers
from paradecode.search.strategies import find_strategy, search_together, strategies

__all__ = [
    "Branch",
    "Grow",
    "Rate",
    "Scorer",
    "SearchRun",
    "SearchTask",
    "Searched",
    "Start",
    "Strategy",
    "completion_of_search",
    "find_scorer",
    "find_strategy",
    "scorers",
    "search_together",
    "strategies",
]
