"""A mutant: a small change of the code after which tests must fail, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


class DoesNotApply(ValueError):
    """The text that a mutant replaces is not there exactly once."""


@dataclass(frozen=True)
class Mutant:
    """A named change of the code, and the tests that must notice it.

    Attributes:
        name: What is wrong in it, in a few words; no two mutants have one name.
        file: The file that is changed, from the root of the repository.
        old: Text that stands in it exactly once.
        new: What stands there instead.
        breaks: The feature that goes, in one phrase.
        tests: Tests as pytest names them; at least one of them must fail.
        hangs: Whether the tests may go on for ever: running out of time then counts as failing.
        known_survivor: Why no test notices it, where that is known. It is run all the same, and must survive:
            once a test notices it, this goes.
        limit_s: How long the tests may take, seconds.

    Example:
        >>> made = Mutant("sum-is-a-difference", "shared/adding.py", "a + b", "a - b", "adding", ("t.py::t",))
        >>> made.applied_to("def add(a, b): return a + b")
        'def add(a, b): return a - b'
        >>> made.module
        'adding'
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    hangs: bool = False
    known_survivor: str = ""
    limit_s: float = 120.0

    def applied_to(self, source: str) -> str:
        """Return a source with the change.

        Raises:
            DoesNotApply: The text is not there, or more than once; or nothing would change.
        """
        found = source.count(self.old) if self.old else 0
        if found != 1:
            raise DoesNotApply(f"its text stands {found} times in {self.file}")
        if self.old == self.new:
            raise DoesNotApply("it changes nothing")
        return source.replace(self.old, self.new)

    @property
    def module(self) -> str:
        """Name by which the changed file is imported."""
        parts = PurePosixPath(self.file).with_suffix("").parts
        if parts[0] == "shared":
            parts = parts[1:]
        elif parts[0] == "apps":
            parts = ("millrace_apps", *parts[1:])
        elif parts[0] in ("generators", "benchmarks", "recipes"):
            parts = ("millrace_apps", *parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
