"""Rendering of views once for all who look: only changes are sent, and none takes others with it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.dashboard.views import Note, View
from millrace.dead_letters import one_line
from millrace.errors import MillraceError
from millrace.runtime.redaction import redact_text

log = logging.getLogger("millrace.dashboard")


class Versions:
    """Bodies by name, each with a version that counts its changes.

    Example:
        >>> kept, seen = Versions(), {}
        >>> kept.put("a", b"1"); kept.put("b", b"1")
        >>> kept.changed(seen)
        [b'1', b'1']
        >>> kept.put("a", b"1"); kept.put("b", b"2")
        >>> kept.changed(seen), seen
        ([b'2'], {'a': 1, 'b': 2})
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, bytes]] = {}

    def put(self, name: str, body: bytes) -> None:
        """Keep a body; one that is as before is no change."""
        version, before = self._kept.get(name, (0, None))
        if body != before:
            self._kept[name] = version + 1, body

    def changed(self, seen: dict[str, int]) -> list[bytes]:
        """Return the bodies that changed since ``seen``, and take note of them in it."""
        found = []
        for name, (version, body) in self._kept.items():
            if seen.get(name) != version:
                seen[name] = version
                found.append(body)
        return found


def view_or_note(make: Callable[[], View | None], what: str, where: str) -> View | None:
    """Return what is made, or a note why it cannot be.

    Args:
        make: Makes it.
        what: What it is called in the note, e.g. ``this panel``.
        where: What it is called in the log.
    """
    try:
        return make()
    except MillraceError as error:
        return Note(redact_text(str(error)), tone="warn")
    except Exception as error:  # of an app: it must not take the others with it
        log.warning("%s: %s", where, one_line(error), exc_info=True)
        return Note(redact_text(f"{what} failed: {one_line(error)}"), tone="bad")
