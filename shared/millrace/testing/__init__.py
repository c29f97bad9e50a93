"""Tools for testing stateful processes and the jobs they run in."""

from millrace.testing.driver import TestDriver

__all__ = ["TestDriver"]
