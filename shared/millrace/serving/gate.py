"""Access to a server of questions: a token, and a rate limit for each address."""

from __future__ import annotations

import hmac
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millrace.errors import UserError

_SHORTEST: Final = 16
#: Addresses that are remembered.
_ADDRESSES: Final = 4_096


class Token:
    """What must come with a question: ``Authorization: Bearer …``.

    Args:
        text: The token; ``None``: one is made.

    Raises:
        UserError: It is too short.
    """

    def __init__(self, text: str | None = None) -> None:
        if text is not None and len(text) < _SHORTEST:
            raise UserError(f"the token is shorter than {_SHORTEST} characters")
        #: Whether it was made here, so that nobody else knows it.
        self.is_made = text is None
        self.text = text or secrets.token_urlsafe(24)

    def fits(self, header: str) -> bool:
        """Say whether a header has it, taking the same time for every other text."""
        scheme, _, told = header.partition(" ")
        same = hmac.compare_digest(told.strip().encode("utf-8", "replace"), self.text.encode())
        return same and scheme.lower() == "bearer"


def read_token(path: Path) -> str:
    """Return the token in a file that only its owner can read.

    Raises:
        UserError: It cannot be read, or others can.
    """
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"{path} can be read by others: chmod 600 {path}")
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the token in {path} cannot be read: {error}") from error


class RateLimit:
    """So many questions a second from each address, and as many at once.

    Args:
        per_s: How many; 0: no limit.
        now: A clock that never goes back, seconds.

    Example:
        >>> times = iter((0.0, 0.0, 0.0, 0.5))
        >>> limit = RateLimit(2, lambda: next(times))
        >>> [limit.wait_s("a") for _ in range(4)]
        [0.0, 0.0, 0.5, 0.0]
    """

    def __init__(self, per_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._now = now
        #: Address → when all that it has asked is paid for.
        self._paid: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return how long an address must wait before it may ask, seconds; 0: it has asked."""
        if not self._per_s:
            return 0.0
        now, cost = self._now(), 1 / self._per_s
        paid = max(self._paid.get(address, 0.0), now)
        # What is asked at once may be as much as a second's.
        late = paid + cost - now - max(1.0, cost)
        if late > 1e-9:
            return late
        self._paid[address] = paid + cost
        self._paid.move_to_end(address)
        while len(self._paid) > _ADDRESSES:
            self._paid.popitem(last=False)
        return 0.0
