"""The times of pages in order, beside a look at every page."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.state.cells import PageInfo
from millrace.state.page_times import EXPIRY, PROCESSING_EXPIRY, PROCESSING_TIMER, TIMER, PageTimes
from millrace.time import NEVER

KINDS = {
    TIMER: "timer",
    EXPIRY: "expiry",
    PROCESSING_TIMER: "processing_timer",
    PROCESSING_EXPIRY: "processing_expiry",
}
TIME = st.none() | st.integers(0, 20)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["note", "note", "note", "split", "new"]),
        st.integers(0, 30),
        st.tuples(TIME, TIME, TIME, TIME),
    ),
    max_size=80,
)


def set_times(info: PageInfo, times: tuple[int | None, ...]) -> None:
    info.timer, info.expiry, info.processing_timer, info.processing_expiry = times


def check(found: PageTimes, pages: list[PageInfo]) -> None:
    """Compare with a look at every page, by where it begins."""
    of_kind = {
        kind: [t for p in pages if (t := getattr(p, name)) is not None] for kind, name in KINDS.items()
    }
    assert found.firsts() == tuple(min(of_kind[kind], default=NEVER) for kind in KINDS)
    in_order = sorted(pages, key=lambda p: f"{p.prefix:0{p.depth}b}" if p.depth else "")
    for line in (-1, 0, 7, 20, NEVER):
        for one, two in ((TIMER, TIMER), (EXPIRY, PROCESSING_EXPIRY), (PROCESSING_TIMER, TIMER)):
            wanted = [
                page
                for page in in_order
                if any(
                    (t := getattr(page, KINDS[k])) is not None and t <= at
                    for k, at in ((one, line), (two, 5))
                )
            ]
            until = found.until((one, line), (two, 5))
            assert len(until) == len(wanted)
            assert all(a is b for a, b in zip(until, wanted, strict=True))


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_what_is_due_is_what_a_look_at_every_page_finds(
    steps: list[tuple[str, int, tuple[int | None, ...]]],
) -> None:
    pages = [PageInfo(0, 1), PageInfo(1, 1, timer=3)]
    found = PageTimes(pages)
    for what, place, times in steps:
        page = pages[place % len(pages)]
        if what == "split" and page.depth < 8:
            halves = [PageInfo(page.prefix << 1 | bit, page.depth + 1) for bit in (0, 1)]
            set_times(halves[place % 2], times)
            pages[pages.index(page) : pages.index(page) + 1] = halves
            found.forget(page.number)
            for half in halves:
                found.note(half)
        elif what == "new":  # another one in its place, as after pages were folded
            same = PageInfo(page.prefix, page.depth)
            set_times(same, times)
            pages[[p is page for p in pages].index(True)] = same
            found.note(same)
        else:
            set_times(page, times)
            found.note(page)
        check(found, pages)


def test_times_that_go_on_forever_leave_no_more_behind_than_there_are_pages() -> None:
    pages = [PageInfo(n, 4) for n in range(16)]
    found = PageTimes(pages)
    pages[0].expiry = 0  # never touched again: it stays at the top
    found.note(pages[0])
    for now in range(1, 50_000):
        page = pages[1 + now % 15]
        page.expiry = now
        found.note(page)
    assert max(map(len, found._heaps)) <= 3 * 16 + 64 + 1
    assert found.firsts()[EXPIRY] == 0
    assert len(found.until((EXPIRY, NEVER))) == 16
