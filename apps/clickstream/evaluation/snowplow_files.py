"""Snowplow's files: events as CSV, and the comparison with the rows that Snowplow expects of them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from millrace.errors import UserError
from millrace_apps.clickstream.contracts.snowplow_events import TrackerEvent

_PAGE_CONTEXT: Final = "contexts_com_snowplowanalytics_snowplow_web_page_1_0_0"
_NEEDED: Final = ("event_id", "event_name", "domain_sessionid", "collector_tstamp", "derived_tstamp",
                  "dvce_created_tstamp", "dvce_sent_tstamp", "domain_userid", _PAGE_CONTEXT)  # fmt: skip
#: Columns that stand in fields of their own.
_OWN: Final = {*_NEEDED, "domain_sessionidx", "user_id"}
_EMPTY: Final = ("", "NULL", "null")
#: So many differences are listed one by one.
_LISTED: Final = 200


class BadFile(UserError):
    """A file is not what the comparison reads."""


class Difference(NamedTuple):
    """A value that is not as expected.

    Attributes:
        table: ``sessions``, ``page_views`` or ``users``.
        key: The row.
        column: The column, or ``row`` where it is missing or too many.
        expected: What stands in the file.
        found: What came out.
    """

    table: str
    key: str
    column: str
    expected: str | None
    found: str | None


Columns = Mapping[str, Callable[[Any], Any]]


def _rows(path: Path) -> list[dict[str, str | None]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            found = [{k: None if v in _EMPTY else v for k, v in row.items() if k} for row in reader]
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path} is no CSV file: {error}") from error
    if not found:
        raise BadFile(f"{path} has no rows")
    return found


def to_ms(text: str | None) -> int:
    """Return a time of the files (UTC, without a zone) in ms.

    >>> to_ms("1970-01-01 00:00:01.5")
    1500
    """
    if text is None:
        raise ValueError("a time is missing")
    moment = datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return round(moment.timestamp() * 1_000)


def read_events(path: Path) -> list[TrackerEvent]:
    """Read a file of events, in order of the collector's time.

    Raises:
        BadFile: It cannot be read, or lacks a column; it says which.
    """
    rows = _rows(path)
    missing = [name for name in _NEEDED if name not in rows[0]]
    if missing:
        raise BadFile(f"{path} has no column {', '.join(missing)}")
    events = []
    for line, row in enumerate(rows, 2):
        try:
            events.append(_event(row))
        except (ValueError, TypeError) as error:
            raise BadFile(f"{path}, line {line}: {error}") from error
    return sorted(events, key=lambda e: e.collector_ms)


def _event(row: Mapping[str, str | None]) -> TrackerEvent:
    scroll = [row.get(f"pp_{name}") for name in ("xoffset_min", "xoffset_max", "yoffset_min", "yoffset_max")]
    index = row.get("domain_sessionidx")
    return TrackerEvent(
        event_id=row["event_id"] or "",
        event_name=row["event_name"] or "",
        session_id=row["domain_sessionid"] or "",
        collector_ms=to_ms(row["collector_tstamp"]),
        created_ms=to_ms(row["dvce_created_tstamp"]),
        sent_ms=to_ms(row["dvce_sent_tstamp"]),
        derived_ms=to_ms(row["derived_tstamp"]),
        page_view_id=_page_view(json.loads(row[_PAGE_CONTEXT] or "null")),
        session_index=None if index is None else int(float(index)),
        visitor_id=row["domain_userid"],
        user_id=row.get("user_id"),
        user_agent=row.get("useragent") or "",
        scroll=tuple(int(float(part or 0)) for part in scroll) if any(scroll) else (),
        attributes={k: v for k, v in row.items() if v is not None and k not in _OWN},
    )


def _page_view(context: Any) -> str | None:
    """Return the id in a context, which some loaders wrap into lists."""
    while isinstance(context, list) and context:
        context = context[0]
    return context.get("id") if isinstance(context, dict) else None


def _attribute(side: str, name: str) -> Callable[[Any], Any]:
    return lambda row: getattr(row, side).get(name)


def _source_platform(row: Any) -> str | None:
    found = re.search(r"utm_source_platform=([^?&#]*)", row.first.get("page_urlquery", ""))
    return found[1] if found and found[1] else None


def _resolution(row: Any) -> str | None:
    return _resolution_of(row.first)


def _percent(share: float | None) -> float | None:
    return None if share is None else float(round(100 * share))


def _resolution_of(attributes: Mapping[str, str]) -> str | None:
    width, height = attributes.get("dvce_screenwidth"), attributes.get("dvce_screenheight")
    return None if width is None or height is None else f"{width}x{height}"


_PAGE: Final = ("title", "url", "urlscheme", "urlhost", "urlpath", "urlquery", "urlfragment")
_REFERRER: Final = ("urlscheme", "urlhost", "urlpath", "urlquery", "urlfragment", "medium", "source", "term")
_CAMPAIGN: Final = ("medium", "source", "term", "content", "campaign", "clickid", "network")
_PLACE: Final = ("country", "region", "region_name", "city", "zipcode", "latitude", "longitude", "timezone")
_ORIGIN: Final[dict[str, str]] = {
    "referrer": "page_referrer",
    **{f"refr_{name}": f"refr_{name}" for name in _REFERRER},
    **{f"mkt_{name}": f"mkt_{name}" for name in _CAMPAIGN},
}
_LAST: Final[dict[str, str]] = {
    **{f"last_page_{name}": f"page_{name}" for name in _PAGE},
    "last_geo_country": "geo_country",
    "last_geo_region_name": "geo_region_name",
    "last_geo_city": "geo_city",
    "last_br_lang": "br_lang",
}

SESSION_COLUMNS: Final[Columns] = {
    "domain_sessionid": lambda r: r.session_id,
    "domain_sessionidx": lambda r: r.session_index,
    "start_tstamp": lambda r: r.start_ms,
    "end_tstamp": lambda r: r.end_ms,
    "user_id": lambda r: r.user_id,
    "domain_userid": lambda r: r.visitor_id,
    "stitched_user_id": lambda r: r.stitched_user_id,
    "page_views": lambda r: r.page_views,
    "engaged_time_in_s": lambda r: r.engaged_time_s,
    "event_counts": lambda r: r.event_counts,
    "total_events": lambda r: r.total_events,
    "is_engaged": lambda r: r.is_engaged,
    "absolute_time_in_s": lambda r: r.absolute_time_s,
    "mkt_source_platform": _source_platform,
    "screen_resolution": _resolution,
    **{f"first_page_{name}": _attribute("first", f"page_{name}") for name in _PAGE},
    **{column: _attribute("first", name) for column, name in _ORIGIN.items()},
    **{column: _attribute("last", name) for column, name in _LAST.items()},
    **{f"geo_{name}": _attribute("first", f"geo_{name}") for name in _PLACE},
    **{name: _attribute("first", name) for name in ("app_id", "platform", "network_userid", "user_ipaddress",
                                                    "useragent", "br_renderengine", "br_lang",
                                                    "os_timezone")},
}  # fmt: skip
VIEW_COLUMNS: Final[Columns] = {
    "page_view_id": lambda r: r.page_view_id,
    "event_id": lambda r: r.event_id,
    "user_id": lambda r: r.user_id,
    "domain_userid": lambda r: r.visitor_id,
    "domain_sessionid": lambda r: r.session_id,
    "domain_sessionidx": lambda r: r.session_index,
    "page_view_in_session_index": lambda r: r.number,
    "page_views_in_session": lambda r: r.of,
    "dvce_created_tstamp": lambda r: r.created_ms,
    "collector_tstamp": lambda r: r.collector_ms,
    "derived_tstamp": lambda r: r.start_ms,
    "start_tstamp": lambda r: r.start_ms,
    "end_tstamp": lambda r: r.end_ms,
    "engaged_time_in_s": lambda r: r.engaged_time_s,
    "absolute_time_in_s": lambda r: r.absolute_time_s,
    "horizontal_pixels_scrolled": lambda r: r.scrolled[0],
    "vertical_pixels_scrolled": lambda r: r.scrolled[1],
    "horizontal_percentage_scrolled": lambda r: _percent(r.seen[0]),
    "vertical_percentage_scrolled": lambda r: _percent(r.seen[1]),
    "screen_resolution": lambda r: _resolution_of(r.attributes),
    **{name: _attribute("attributes", name) for name in (
        "app_id", "platform", "network_userid", "doc_width", "doc_height", "page_referrer",
        *(f"page_{n}" for n in _PAGE), *(f"refr_{n}" for n in _REFERRER), *(f"mkt_{n}" for n in _CAMPAIGN),
        *(f"geo_{n}" for n in _PLACE), "user_ipaddress", "useragent", "br_lang", "br_viewwidth",
        "br_viewheight", "br_colordepth", "br_renderengine", "os_timezone")},
}  # fmt: skip
USER_COLUMNS: Final[Columns] = {
    "user_id": lambda r: r.user_id,
    "domain_userid": lambda r: r.visitor_id,
    "start_tstamp": lambda r: r.start_ms,
    "end_tstamp": lambda r: r.end_ms,
    "page_views": lambda r: r.page_views,
    "sessions": lambda r: r.sessions,
    "engaged_time_in_s": lambda r: r.engaged_time_s,
    "network_userid": _attribute("first", "network_userid"),
    "mkt_source_platform": _source_platform,
    **{f"first_page_{name}": _attribute("first", f"page_{name}") for name in _PAGE},
    **{f"first_{name}": _attribute("first", name)
       for name in ("geo_country", "geo_city", "geo_region_name", "br_lang")},
    **{column: _attribute("first", name) for column, name in _ORIGIN.items()},
    **{column: _attribute("last", name) for column, name in _LAST.items()},
}  # fmt: skip


class Comparison(NamedTuple):
    """How rows compare with a file of expected ones.

    Attributes:
        expected: Rows in the file.
        matching: Rows of it that are there and equal in every compared column.
        mismatches: Rows of it that are not, and rows that should not be there, or are there again.
        differences: What differs.
        compared: Columns that were compared.
        not_compared: Columns that were not.
    """

    expected: int
    matching: int
    mismatches: int
    differences: list[Difference]
    compared: list[str]
    not_compared: list[str]


def compare(
    table: str, found: Iterable[Any], path: Path, columns: Columns,
    key: str,
) -> Comparison:  # fmt: skip
    """Compare rows with a file, column by column, exactly.

    Args:
        table: Name of the table, for the differences.
        found: Its rows.
        path: The file.
        columns: Columns of the file that are compared, and how a row's values are found.
        key: The column that names a row.

    Raises:
        BadFile: The file cannot be read or has no such key.
    """
    expected = _rows(path)
    if key not in expected[0]:
        raise BadFile(f"{path} has no column {key}")
    compared = [name for name in expected[0] if name in columns]
    by_key: dict[str, Any] = {}
    differences: list[Difference] = []
    for row in found:
        name = str(columns[key](row))
        if name in by_key:
            differences.append(Difference(table, name, "row", "once", "again"))
        by_key[name] = row
    again = len(differences)
    matching = 0
    for wanted in expected:
        name = str(wanted[key])
        mine = by_key.pop(name, None)
        if mine is None:
            differences.append(Difference(table, name, "row", "there", "missing"))
            continue
        told = [_difference(table, name, c, wanted[c], columns[c](mine)) for c in compared]
        wrong = [d for d in told if d is not None]
        matching += not wrong
        differences += wrong
    differences += [Difference(table, name, "row", None, "not expected") for name in sorted(by_key)]
    left_out = [name for name in expected[0] if name not in columns]
    mismatches = len(expected) - matching + len(by_key) + again
    return Comparison(len(expected), matching, mismatches, differences[:_LISTED], compared, left_out)


def _difference(table: str, key: str, column: str, wanted: str | None, value: Any) -> Difference | None:
    if _same(column, wanted, value):
        return None
    return Difference(table, key, column, wanted, None if value is None else str(value))


def _same(column: str, wanted: str | None, value: Any) -> bool:
    """Compare as the type of the value says: times by the millisecond, numbers as numbers, text exactly."""
    if wanted is None or value is None:
        return wanted is None and value is None
    if isinstance(value, bool):
        return wanted.lower() == str(value).lower()
    if isinstance(value, int | float):
        return (to_ms(wanted) if column.endswith("tstamp") else float(wanted)) == value
    if isinstance(value, dict):
        return bool(json.loads(wanted) == value)
    if wanted == value:
        return True
    try:  # The same number, written otherwise: 2560 and 2560.0.
        return float(wanted) == float(value)
    except ValueError:
        return False


__all__ = [
    "SESSION_COLUMNS",
    "USER_COLUMNS",
    "VIEW_COLUMNS",
    "BadFile",
    "Comparison",
    "compare",
    "read_events",
]
