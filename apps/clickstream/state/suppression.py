"""The list of what was forgotten: events of before that come late bring nobody back.

Beside the state of a browser, person or cart stands when it was forgotten, for as long as its events may
still come (:data:`SUPPRESSED`). The list has the key and a time, nothing else, and ends by itself. What
happens after the request counts again: who comes back is somebody new.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millrace import days

#: How long an erasure is remembered; topics must not keep their records for longer.
SUPPRESSED: Final = days(30)


class Suppressed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """That something was forgotten.

    Attributes:
        at_ms: Everything up to here is of before, UTC ms.
        request_id: The request.
        account_ms: So of the account of that name, which is nothing to a browser of the name; -1: it was not.
    """

    at_ms: int
    request_id: str
    account_ms: int = -1

    def after(self, before: Suppressed | None) -> Suppressed:
        """Return what of two requests holds: the later one.

        >>> Suppressed(-1, "r2", 9).after(Suppressed(5, "r1"))
        Suppressed(at_ms=5, request_id='r1', account_ms=9)
        """
        if before is None:
            return self
        later = self if before.at_ms < self.at_ms else before
        return msgspec.structs.replace(later, account_ms=max(self.account_ms, before.account_ms))


def is_suppressed(erased: Suppressed | None, at_ms: int) -> bool:
    """Tell whether what happened at a time (UTC ms) is forgotten.

    >>> is_suppressed(Suppressed(5, "r"), 5), is_suppressed(Suppressed(5, "r"), 6), is_suppressed(None, 5)
    (True, False, False)
    """
    return erased is not None and at_ms <= erased.at_ms
