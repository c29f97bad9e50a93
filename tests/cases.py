"""How many random cases a test runs."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: CI runs one in so many: new ones are for those who can look into them.
_CI_SHARE = 3


def case_count(usual: int, variable: str = "MILLRACE_CASES", share: int = _CI_SHARE) -> int:
    """Return how many random cases a test runs: as many as a variable says, else the usual number.

    In CI, where they are the same in every run, it is a third of them, so that all kinds of tests fit in one
    run. Seeds count from 0, so that these are among the usual ones.

    Args:
        usual: The number where nothing is said.
        variable: Name of the environment variable, e.g. ``MILLRACE_CASES=10000 pytest …``.
        share: CI runs one in so many, where a case is dear.

    >>> os.environ["OF_AN_EXAMPLE"] = "7"
    >>> case_count(150, "OF_AN_EXAMPLE")
    7
    """
    said = os.environ.get(variable)
    if said is not None:
        return int(said)
    return max(1, round(usual / share)) if os.environ.get("CI") else usual


#: Environment variable: lists of cases are run as a whole, also in CI.
WHOLE_LISTS = "MILLRACE_WHOLE_LISTS"


def sampled(usual: Sequence[T]) -> Sequence[T]:
    """Return the cases of a test, in CI every third: for lists that are long and dear.

    Args:
        usual: The cases.

    >>> os.environ[WHOLE_LISTS] = "1"
    >>> sampled("abcdefg")
    'abcdefg'
    >>> del os.environ[WHOLE_LISTS]
    """
    return usual[::_CI_SHARE] if os.environ.get("CI") and not os.environ.get(WHOLE_LISTS) else usual
