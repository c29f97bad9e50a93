"""Channels of visits: source, medium and campaign of a landing, and the channel that these are of.

A landing is told by what the shop has put into its links (``utm_source`` and the others), where that is
missing by the click id of an advertisement, and where there is none by the page that the visitor comes from.
Who comes from the shop itself, or back from a provider of payment, was there before: that is no landing.

What click ids, words and hosts mean is a table, ``channels.yaml``, that a shop may replace. The names of the
channels follow Google Analytics' default channel group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta

from millrace.errors import UserError
from millrace_apps.clickstream.contracts.events import Click

#: The app's own table.
TABLE: Final = Path(__file__).with_name("channels.yaml")
#: Somebody who was brought by nothing that is known.
DIRECT: Final = "direct"
#: Something is known, but not of what channel it is.
UNASSIGNED: Final = "unassigned"

#: What a source is.
SourceKind = Literal["search", "shopping", "social", "video", "mail", "assistant"]
#: What a word of ``utm_medium`` says; ``paid`` is a channel together with what the source is.
MediumKind = Literal[
    "paid", "paid_search", "paid_social", "paid_video", "paid_shopping", "display", "organic_search",
    "organic_social", "organic_video", "organic_shopping", "email", "sms", "push", "affiliate", "audio",
    "ai_assistant", "referral",
]  # fmt: skip

#: What a source is → its channel, and the medium of a landing that only its referrer tells of.
_UNPAID: Final[dict[str, tuple[str, str]]] = {
    "search": ("organic_search", "organic"),
    "shopping": ("organic_shopping", "organic-shopping"),
    "social": ("organic_social", "social"),
    "video": ("organic_video", "video"),
    "mail": ("email", "email"),
    "assistant": ("ai_assistant", "ai-assistant"),
}
_PAID: Final = {"search": "paid_search", "shopping": "paid_shopping", "social": "paid_social",
                "video": "paid_video"}  # fmt: skip
_NONE: Final = "(none)"
_NOT_SET: Final = "(not set)"
#: Second levels below which a country has its names.
_SECOND_LEVELS: Final = frozenset({"co", "com", "org", "net", "ne", "or"})
#: So many parameters of an address are looked at.
_MOST_PARAMETERS: Final = 100
#: What would look like the border between two parts of a label.
_BORDER: Final = re.compile(r"\s*/\s+|\s+/\s*")

Word = Annotated[str, Meta(pattern="^[a-z0-9_][a-z0-9._-]*$", max_length=64)]
Host = Annotated[str, Meta(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)*(\.\*)?$", max_length=253)]


class ChannelsError(UserError):
    """A table of channels that cannot be read or understood."""


class Marked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a click id says.

    Attributes:
        source: Where from.
        medium: How.
    """

    source: Word
    medium: Word


class ChannelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as it stands in a file.

    Attributes:
        click_ids: Parameter of an address, lower case → what it says.
        mediums: Channel → words of ``utm_medium``.
        sources: What a source is → its name → its hosts.
        returns: Hosts from which somebody comes back.
    """

    click_ids: dict[Word, Marked]
    mediums: dict[MediumKind, list[Word]]
    sources: dict[SourceKind, dict[Word, list[Host]]]
    returns: list[Host]


@dataclass(frozen=True)
class Channels:
    """What tells landings and channels.

    Attributes:
        click_ids: Parameter of an address → source and medium.
        mediums: Word of ``utm_medium`` → what it says.
        kinds: Name of a source → what it is.
        hosts: Host, or its end → name of the source; ``google.*`` is in whichever country.
        returns: Hosts from which somebody comes back.
        own: Further hosts of the shop.

    Example:
        >>> table = built_in()
        >>> table.channel("google / cpc / spring"), table.channel("newsletter / email / (none)")
        ('paid_search', 'email')
        >>> table.channel(None), table.channel("somebody / something / (none)")
        ('direct', 'unassigned')
    """

    click_ids: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    mediums: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    returns: frozenset[str] = frozenset()
    own: tuple[str, ...] = ()

    def landing(self, event: Click) -> str | None:
        """Return source, medium and campaign of a landing as one text; ``None`` for what is none.

        Args:
            event: The click. What is told beside ``utm_source`` is told by views of pages alone: pings and
                purchases repeat the address of their page.

        Example:
            >>> def landed(**fields):
            ...     return built_in().landing(Click("e", "page_view", 0, 0, "v", "s", 1, "mobile", "", "home",
            ...                                     "https://shop.example/", **fields))
            >>> landed(utm_source="google", utm_medium="cpc"), landed(click_id="gclid-1")
            ('google / cpc / (none)', 'google / cpc / (none)')
            >>> landed(referrer="https://www.google.co.uk/"), landed(referrer="https://blog.example/a")
            ('google / organic / (none)', 'blog.example / referral / (none)')
            >>> print(landed(referrer="https://www.paypal.com/pay"), landed(referrer="https://shop.example/a"))
            None None
        """
        source, medium, campaign = event.utm_source, event.utm_medium, event.utm_campaign
        if source:
            return label_of(source, medium, campaign)
        if event.event_type != "page_view":
            return None
        given = _parameters(event.page_url)
        source, medium = given.get("utm_source"), medium or given.get("utm_medium")
        campaign = campaign or given.get("utm_campaign")
        marked = self._marked(event.click_id, given)
        came = self._came(event)
        if source:
            return label_of(source, medium, campaign)
        if marked is not None:
            return label_of(marked[0], medium or marked[1], campaign)
        if medium or campaign:
            return label_of(came[0] if came else _NOT_SET, medium, campaign)
        return None if came is None else label_of(*came, None)

    def channel(self, label: str | None) -> str:
        """Return the channel of source, medium and campaign; ``direct`` for ``None``.

        Args:
            label: As :meth:`landing` returns it, or ``direct``.
        """
        if label is None or label == DIRECT:
            return DIRECT
        source, medium, *_ = (*label.split(" / "), "", "")
        name = source.lower()
        kind = self.kinds.get(name) or self.kinds.get(self._source(name) or "")
        said = self.mediums.get(re.sub(r"[_\s]+", "-", medium.lower()))
        if said == "paid":
            return _PAID.get(kind or "", "paid_other")
        if kind is not None and said in (None, "referral", "organic_search"):
            return _UNPAID[kind][0]
        return said or UNASSIGNED

    def _marked(self, click_id: str | None, given: Mapping[str, str]) -> tuple[str, str] | None:
        """Return what a click id says: a field that begins with its parameter, or one of the address."""
        if click_id:
            name = re.split(r"[-=:.]", click_id.lower(), maxsplit=1)[0]
            if name in self.click_ids:
                return self.click_ids[name]
        # Of several the one that stands first in the table.
        return (
            next((said for name, said in self.click_ids.items() if given.get(name)), None) if given else None
        )

    def _came(self, event: Click) -> tuple[str, str] | None:
        """Return source and medium by the page that somebody comes from; ``None``: nowhere from outside."""
        host = _host(event.referrer) if event.referrer else ""
        if not host or _same_site(host, _host(event.page_url)) or any(_below(host, own) for own in self.own):
            return None
        name = self._source(host)
        if any(end in self.returns for end in _ends(host)):
            return None
        if name is None:
            return host, "referral"
        return name, _UNPAID[self.kinds[name]][1]

    def _source(self, host: str) -> str | None:
        return next((self.hosts[end] for end in _ends(host) if end in self.hosts), None)


def label_of(source: str, medium: str | None, campaign: str | None) -> str:
    """Return source, medium and campaign as one text.

    >>> label_of("google", "cpc", None), label_of("a / b", None, "c /d")
    ('google / cpc / (none)', 'a/b / (none) / c/d')
    """
    return " / ".join(_BORDER.sub("/", (part or "").strip()) or _NONE for part in (source, medium, campaign))


def channels_of(table: ChannelTable, own: Iterable[str] = ()) -> Channels:
    """Return what tells landings and channels by a table.

    Args:
        table: The table.
        own: Further hosts of the shop.

    Raises:
        ChannelsError: A word, a source or a host stands in it twice.
    """
    mediums: dict[str, str] = {}
    for channel, words in table.mediums.items():
        for word in words:
            _once(mediums, word, channel, "the medium")
    kinds: dict[str, str] = {}
    hosts: dict[str, str] = {}
    for kind, sources in table.sources.items():
        for name, own_hosts in sources.items():
            _once(kinds, name, kind, "the source")
            for end in own_hosts:
                _once(hosts, end, name, "the host")
    both = sorted(hosts.keys() & set(table.returns))
    if both:
        raise ChannelsError(f"the host {both[0]} is a source, and among those that somebody comes back from")
    click_ids = {name.lower(): (said.source, said.medium) for name, said in table.click_ids.items()}
    ends = tuple(host.strip().lower().removeprefix("www.") for host in own)
    return Channels(click_ids, mediums, kinds, hosts, frozenset(table.returns), ends)


def read_channels(path: Path = TABLE, own: Iterable[str] = ()) -> Channels:
    """Read a table of channels from a file: JSON or YAML.

    Args:
        path: The file.
        own: Further hosts of the shop.

    Raises:
        ChannelsError: It cannot be read or understood; the message says where.
    """
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.yaml.decode
    try:
        return channels_of(decode(path.read_bytes(), type=ChannelTable), own)
    except OSError as error:
        raise ChannelsError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ChannelsError) as error:
        raise ChannelsError(f"{path}: {error}") from error


@cache
def built_in() -> Channels:
    """Return the app's own table."""
    return read_channels()


def _once(there: dict[str, str], name: str, what: str, kind: str) -> None:
    if name in there:
        raise ChannelsError(f"{kind} {name} stands there twice: {there[name]}, {what}")
    there[name] = what


def _parameters(address: str) -> dict[str, str]:
    """Return the parameters of an address by their names in lower case; of a repeated one the first."""
    if "?" not in address:
        return {}
    try:
        found = parse_qsl(urlsplit(address).query, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        return {}
    return {name.lower(): value for name, value in reversed(found)}


def _host(address: str) -> str:
    """Return the host of an address, lower case, without ``www.``; empty where there is none."""
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        return ""
    return host.rstrip(".").removeprefix("www.")


def _below(host: str, end: str) -> bool:
    return host == end or host.endswith(f".{end}")


def _same_site(host: str, other: str) -> bool:
    return bool(other) and (_below(host, other) or _below(other, host))


def _ends(host: str) -> Iterable[str]:
    """Yield a host and what it ends with, longest first, each also as a name in whichever country.

    >>> list(_ends("www.google.co.uk"))[:4]
    ['www.google.co.uk', 'www.google.*', 'google.co.uk', 'google.*']
    """
    labels = host.split(".")
    country = 2 if len(labels) > 2 and labels[-2] in _SECOND_LEVELS else 1
    for place in range(len(labels)):
        yield ".".join(labels[place:])
        if place < len(labels) - country:
            yield ".".join(labels[place:-country]) + ".*"
