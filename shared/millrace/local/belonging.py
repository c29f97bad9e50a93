"""For which of several jobs in one process a piece of work is done: each has a log of its own.

A thread does what it does for whoever it was begun for, and says so itself (``Thread(target=belonging(f))``):
Python's threads take nothing along of who has started them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_owner: ContextVar[object | None] = ContextVar("millrace_owner", default=None)


def owner() -> object | None:
    """Return for whom what runs here is done; ``None``: for nobody in particular."""
    return _owner.get()


@contextmanager
def belonging_to(who: object | None) -> Iterator[None]:
    """Do what the block does for somebody.

    >>> with belonging_to("fraud"):
    ...     owner()
    'fraud'
    """
    token = _owner.set(who)
    try:
        yield
    finally:
        _owner.reset(token)


def belonging(call: Callable[P, R]) -> Callable[P, R]:
    """Return a function that, wherever it is called, works for whom it was made.

    Args:
        call: What it does.
    """
    who = owner()

    @functools.wraps(call, updated=())
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        with belonging_to(who):
            return call(*arguments, **named)

    return called


def adopted() -> Callable[[], None]:
    """Return what makes a thread work for whom this is called, to its end: an initializer of a pool."""
    who = owner()

    def adopt() -> None:
        _owner.set(who)

    return adopt
