"""Attribution of a browser's touches to accounts at every moment, by the logins up to it.

An order is attributed by its own time. A landing that nobody was there for is an account's from its login on,
not before; so of each touch is told since when it is known to be somebody's, and, where a browser is all of
whoever was there last, until when.
"""

from __future__ import annotations

from typing import Final, Literal

from millrace_apps.clickstream.state.browser_state import BrowserState
from millrace_apps.clickstream.state.profiles import Touch

#: When (UTC ms), by what, since when that is known to be theirs, and until when; 0: for good.
Told = tuple[int, str, int, int]
#: The touches of no account, among those of accounts.
NOBODYS: Final = ""


def touches_told(
    known: BrowserState, shared: Literal["split", "last"], settled_ms: int
) -> dict[str, list[Told]]:
    """Return account → its touches, in order of time.

    Args:
        known: What is known of the browser.
        shared: Whose a browser is that several accounts use.
        settled_ms: Orders up to here are attributed, UTC ms: what was over by then is left out.

    Example:
        >>> from millrace_apps.clickstream.state.ownership import Ownership
        >>> marks = Ownership(marks=[(20, "ann"), (30, "bob")])
        >>> known = BrowserState(touches=[(5, "mail", "")], ownership=marks)
        >>> touches_told(known, "split", 0)
        {'ann': [(5, 'mail', 20, 0)]}
        >>> touches_told(known, "last", 0)
        {'ann': [(5, 'mail', 20, 30)], 'bob': [(5, 'mail', 30, 0)]}
    """
    found: dict[str, list[Told]] = {}
    touches = known.all_touches()
    if not touches:
        return found
    there = known.ownership
    if shared == "last":
        spans = _spans(known)
        for at, by, _ in touches:
            for start, end, user in spans:
                since = at if start is None else max(at, start)
                if not end or end > max(since, settled_ms):
                    found.setdefault(user, []).append((at, by, since, end))
        return found
    for at, by, name in touches:
        owner, since = name or owner_by(known, at), at
        if not owner and there is not None and (claim := there.next_after(at)) is not None:
            since, owner = claim
        if owner:
            found.setdefault(owner, []).append((at, by, since, 0))
    return found


def brought_by(
    known: BrowserState, owner: str, at_ms: int, shared: Literal["split", "last"]
) -> list[tuple[int, str]]:
    """Return when (UTC ms) and by what somebody had been brought, as it was known at a moment.

    Args:
        known: What is known of the browser.
        owner: The account; empty: what no account's was.
        at_ms: The moment, UTC ms.
        shared: Whose a browser is that several accounts use.
    """
    told = touches_told(known, shared, at_ms - 1)
    valid = {user: [one[:2] for one in own if Touch(*one).counts(at_ms)] for user, own in told.items()}
    if owner:
        return valid.get(owner, [])
    owned = {touch for own in valid.values() for touch in own}
    return [(at, by) for at, by, _ in known.all_touches() if at <= at_ms and (at, by) not in owned]


def owner_by(known: BrowserState, at_ms: int) -> str:
    """Return who was there at a moment (UTC ms), by what happened up to it; empty for nobody."""
    return (known.user_id or NOBODYS) if known.ownership is None else known.ownership.at(at_ms)


def _spans(known: BrowserState) -> list[tuple[int | None, int, str]]:
    """Return since when, until when (0: for good) and who was there last."""
    there = known.ownership
    if there is None:
        return [(None, 0, known.user_id)] if known.user_id else []
    starts: list[tuple[int | None, str]] = [(None, there.base)] if there.base else []
    for at, user in there.marks:
        if user and (not starts or starts[-1][1] != user):
            starts.append((at, user))
    ends = [start or 0 for start, _ in starts[1:]] + [0]
    return [(start, end, user) for (start, user), end in zip(starts, ends, strict=True)]
