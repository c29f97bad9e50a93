"""Rows of the tables about visitors: sessions, identities, erasures."""

from __future__ import annotations

import hashlib

import msgspec

from millrace_apps.clickstream.contracts.events import SubjectKind


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """A session; a row by ``session_id``, the highest ``revision`` holds.

    Attributes:
        session_id: Visitor and start.
        visitor_id: Cookie of the browser.
        user_id: The account that the browser is known to be of; written into earlier rows, too.
        number: Which session of this browser; of one that is not over, which it will be.
        start_ms: Time of the first event, UTC ms.
        end_ms: Time of the last one.
        events: How many.
        page_views: Page views among them.
        attention_s: Time of attention that page pings tell of.
        is_engaged: Whether somebody was really there, by the rule set.
        is_converted: Whether something was bought.
        added: Items put into the cart, less those taken out.
        orders: Purchases.
        revenue_cents: Their value.
        campaign: Source, medium and campaign; ``None``: direct.
        landing_page: Address of the first page.
        exit_page: Address of the last page.
        device: Kind of device.
        rules: The rule set.
        close_reason: Why it ended; empty while it is provisional.
        is_final: Whether it is over.
        ignored: Events that came too late for it by the rule set.
        bot: Why it is a bot's: ``user_agent`` or ``rate``; empty where it is not.
        revision: Grows with every row of the visitor.
        deleted: The row is none any more: it has merged with another, or begins earlier.
        is_full: Whether more was done in it than is kept of it: its figures are at least these.
        channel: The channel that ``campaign`` is of; ``direct`` for none.
    """

    session_id: str
    visitor_id: str
    user_id: str | None
    number: int
    start_ms: int
    end_ms: int
    events: int
    page_views: int
    attention_s: int
    is_engaged: bool
    is_converted: bool
    added: int
    orders: int
    revenue_cents: int
    campaign: str | None
    landing_page: str
    exit_page: str
    device: str
    rules: str
    close_reason: str
    is_final: bool
    ignored: int
    bot: str
    revision: int
    deleted: bool = False
    is_full: bool = False
    channel: str = "direct"


class Identity(msgspec.Struct, frozen=True, gc=False):
    """A browser is known to be a person's; a row by ``visitor_id``, the highest ``revision`` holds.

    Attributes:
        visitor_id: Cookie of the browser.
        user_id: The account.
        linked_ms: Since when, UTC ms.
        revision: Grows with every row of the visitor.
        deleted: It is known no more: consent was withdrawn, or the person forgotten.
    """

    visitor_id: str
    user_id: str
    linked_ms: int
    revision: int
    deleted: bool = False


class OwnerChange(msgspec.Struct, frozen=True, gc=False):
    """From a moment on a browser is somebody else's, or nobody's: the audit of whose it was when.

    A row by ``visitor_id`` and ``from_ms``, the highest ``revision`` holds: what comes late is sorted in.

    Attributes:
        visitor_id: Cookie of the browser.
        from_ms: The moment, UTC ms.
        user_id: The account that was seen there; None: nobody is known by it any more.
        why: ``seen``, ``logout`` or ``withdrawn``.
        cause: The event by which it is known.
        revision: Grows with every row of the visitor.
        deleted: It has turned out otherwise.
    """

    visitor_id: str
    from_ms: int
    user_id: str | None
    why: str
    cause: str
    revision: int
    deleted: bool = False


class Erased(msgspec.Struct, frozen=True, gc=False):
    """Something was forgotten: the audit of erasures, in which nobody is named.

    Attributes:
        request_id: The request.
        subject_digest: :func:`digest_of` what was forgotten, by its kind: a browser, an account or a cart.
        had_state: Whether anything was known.
        at_ms: When it was asked for, UTC ms.
        suppressed: An event of before the request has come since, and was dropped.
    """

    request_id: str
    subject_digest: str
    had_state: bool
    at_ms: int
    suppressed: bool = False


def digest_of(name: str, kind: SubjectKind | None = None) -> str:
    """Return a digest by which somebody who has a name can tell that it is meant.

    Args:
        name: The name.
        kind: What has it: an account and a cart are told from a browser of the same name.

    >>> digest_of("u1") == digest_of("u1", "browser") != digest_of("u2")
    True
    >>> len({digest_of("42", kind) for kind in ("browser", "account", "cart")})
    3
    """
    if kind is None or kind == "browser":
        return hashlib.sha256(name.encode()).hexdigest()[:32]
    return hashlib.blake2b(name.encode(), digest_size=16, person=kind.encode()).hexdigest()
