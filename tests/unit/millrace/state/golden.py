"""State as this version writes it, to be kept and read by every later one.

`python -m tests.unit.millrace.state.golden` writes `data/golden/state-<version>.json` beside it; run it for
a new encoding version, and leave the files of the older ones as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from millrace.state import (
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.state.layout import ENCODING_VERSION, PendingRow, TimerRecord
from tests.unit.millrace.state.cases import HOUR, Bed, DictBackend

FOLDER = Path(__file__).parent / "data" / "golden"
#: The watermark and the tick that the groups were written at.
WATERMARK, TICK = 1_700_000_000_000, 1_700_000_100_000


class Account(msgspec.Struct):
    count: int = 0
    mean: float = 0.0
    tags: list[str] = []
    limit: float | None = None


class Point(msgspec.Struct, array_like=True):
    x: int
    y: float = 0.5


def every_kind() -> dict[str, Any]:
    return {
        "plain": value_state(int, default=0),
        "optional": value_state(str),
        "account": value_state(Account),
        "expiring": value_state(Point, ttl=HOUR),
        "ticking": value_state(bytes, ttl=HOUR, ttl_time="processing_time"),
        "seen": map_state(str, Point),
        "brief": map_state(int, bool, ttl=HOUR),
        "items": list_state(float),
        "recent": list_state(str, ttl="per_write"),
        "largest": reducing_state(int, max),
        "total": aggregating_state(list[int], create=list, add=lambda a, v: [*a, v], result=sum, ttl=HOUR),
        "price": versioned_state(float, history=HOUR),
        "rate": versioned_state(float, history=HOUR, ttl=HOUR),
    }


def one_page() -> Bed:
    """Every kind of state, timers on both clocks and waiting rows, in one page."""
    bed = Bed(label=3, **every_kind())
    bed.processing_time = TICK
    with bed.on("1:é", now=WATERMARK + 5) as s:
        s.plain.value, s.optional.value = -7, "ü"
        s.account.value = Account(3, 2.5, ["a"], 9.75)
        s.expiring.value, s.ticking.value = Point(1, 2.0), b"\x00\xff"
        s.seen.put("p", Point(2))
        s.brief.put(-3, True)
        s.items.extend([1.0, -0.25])
        s.recent.append("for ever")
        s.recent.append("a second", ttl=1_000)
        s.largest.add(2**40)
        s.total.add(4)
        for value, at in ((1.5, 1), (None, 4), (2.5, 9)):
            s.price.put(value, WATERMARK + at)
        s.rate.put(1.0)
        entry = bed.cursor.entry
        entry.timers_.append(TimerRecord(WATERMARK + 60_000, "idle", True, 2**55))
        entry.processing_timers_.append(TimerRecord(TICK + 60_000, "flush"))
        entry.pending_.append(PendingRow(WATERMARK + 7, "in:0:42", b'{"a":1}', '[["h","v"]]', False))
    with bed.on("1:b", now=WATERMARK + 5) as s:
        s.plain.value = 1
    bed.store.broadcast = 77
    bed.commit(WATERMARK)
    return bed


def many_pages() -> Bed:
    """Two generations of declarations over some pages."""
    backend = DictBackend()
    for names in (("a", "b"), ("b", "c", "a")):
        bed = Bed(backend=backend, page_bytes=400, **{n: value_state(int, default=0) for n in names})
        for i in range(60) if "c" not in names else (7, 8):
            with bed.on(f"2:{i:02}") as s:
                for n, name in enumerate(names):
                    getattr(s, name).value = 100 * i + n
        bed.commit(WATERMARK)
    return bed


def opened_one_page(backend: DictBackend) -> Bed:
    return Bed(label=3, backend=backend, **every_kind())


def opened_many_pages(backend: DictBackend) -> Bed:
    return Bed(backend=backend, page_bytes=400, **{n: value_state(int, default=0) for n in "bca"})


#: Group → (writes it, opens it).
GROUPS: dict[str, tuple[Callable[[], Bed], Callable[[DictBackend], Bed]]] = {
    "one_page": (one_page, opened_one_page),
    "many_pages": (many_pages, opened_many_pages),
}


def as_json(bed: Bed) -> dict[str, Any]:
    """A group's bytes, and what stands in them."""
    assert bed.backend.header is not None
    entries = {
        key: {
            name: msgspec.to_builtins(getattr(entry, name), str_keys=True) for name in entry.__struct_fields__
        }
        for key, entry in sorted(bed.kept().items())
    }
    return {
        "header": bed.backend.header.hex(),
        "pages": {str(n): data.hex() for n, data in sorted(bed.backend.pages.items())},
        "entries": entries,
    }


def from_json(group: dict[str, Any]) -> DictBackend:
    backend = DictBackend()
    backend.header = bytes.fromhex(group["header"])
    backend.pages = {int(n): bytes.fromhex(data) for n, data in group["pages"].items()}
    return backend


def write() -> Path:
    """Write the groups as this version does."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"state-{ENCODING_VERSION}.json"
    groups = {name: as_json(make()) for name, (make, _) in GROUPS.items()}
    path.write_text(json.dumps(groups, indent=1, sort_keys=True) + "\n")
    return path


if __name__ == "__main__":
    print(write())
