"""The exceptions that a caller can handle, and how the command line ends on each.

A :class:`UserError` is something the person at the keyboard can put right (a bad flag, a missing
Java, a broker that does not answer): the command line prints its message in one line and exits
with :attr:`~MillraceError.exit_code`, never with a traceback.
"""

from __future__ import annotations


class MillraceError(Exception):
    """Base of every exception that this project raises on purpose."""

    exit_code: int = 1


class UserError(MillraceError):
    """Something the user can put right; the message says what was wrong, where, and what to do."""

    exit_code = 2


class ChecksFailed(MillraceError):
    """A run finished, and one of its own checks against the truth did not hold."""

    exit_code = 1
