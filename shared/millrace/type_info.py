"""A cache of msgspec's type information: a process is bound to its types for every batch and task."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import inspect


def type_info(tp: Any) -> inspect.Type:
    """Return what msgspec knows of a type, as :func:`msgspec.inspect.type_info` does; not to be changed.

    Args:
        tp: A type as it is written in an annotation.

    Raises:
        TypeError: It is none that msgspec knows.

    Example:
        >>> type_info(list[int]) is type_info(list[int])
        True
    """
    try:
        # Unions in another order are equal, and are not the same: their text tells them apart.
        return _known(tp, repr(tp))
    except TypeError:  # what has no hash
        return inspect.type_info(tp)


@lru_cache(maxsize=4096)
def _known(tp: Any, written: str) -> inspect.Type:
    return inspect.type_info(tp)
