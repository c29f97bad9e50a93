"""What a definition refuses, what its results look like, and how it travels."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from pyspark import cloudpickle

from millrace import minutes
from millrace.host.spark_types import struct_type
from millrace.process import KeyedProcess, ProcessDefinitionError
from millrace.testing import TestDriver
from millrace.windows import (
    WindowDefinitionError,
    WindowProcess,
    approx_count_distinct,
    collect,
    count,
    count_sliding,
    first,
    global_window,
    hopping,
    last,
    lookback,
    max_of,
    mean,
    min_of,
    quantile,
    session,
    sliding,
    stddev,
    sum_of,
    top_n,
    tumbling,
    watermark,
    window,
)
from tests.unit.millrace.windows.cases import BY_HAND, At, Ev, play, windows

TWO = watermark().early(count=2)


def columns(process: WindowProcess) -> list[tuple[str, Any]]:
    return [(f.name, f.type) for f in msgspec.structs.fields(process.output_type)]


def test_results_are_records_typed_by_the_event() -> None:
    process = window(Ev, tumbling(10)).aggregate(
        n=count(), total=sum_of("v"), x=sum_of("x"), high=max_of("tag")
    )
    assert columns(process) == [
        ("key", str),
        ("window_start_ms", int),
        ("window_end_ms", int),
        ("n", int),
        ("total", int),
        ("x", float),
        ("high", str | None),
    ]
    assert isinstance(process, KeyedProcess)


def test_a_window_that_may_speak_twice_says_which_result_it_is() -> None:
    plain = ["key", "window_start_ms", "window_end_ms", "n"]

    def names(**options: Any) -> list[str]:
        return [name for name, _ in columns(window(Ev, tumbling(10), **options).aggregate(n=count()))]

    assert names() == plain
    assert names(allowed_lateness=1) == [*plain, "revision", "pane"]
    assert names(trigger=watermark().early(count=2)) == [*plain, "revision", "pane"]
    assert names(emit="updates") == [*plain, "revision", "pane"]
    assert names(emit="changelog") == [*plain, "revision", "pane", "change"]


def test_every_result_has_a_spark_schema() -> None:
    everything = {
        "n": count(), "total": sum_of("x"), "avg": mean("x"), "dev": stddev("x"), "low": min_of("v"),
        "one": first(), "tags": collect("tag"), "about": approx_count_distinct("tag"),
        "p": quantile("x", [0.5]), "best": top_n(2, "v"), "end": last("v"), "mid": quantile("x", 0.5),
    }  # fmt: skip
    process = window(Ev, tumbling(10), emit="changelog").aggregate(**everything)  # type: ignore[arg-type]
    event = "struct<v:bigint,tag:string,x:double,gap:bigint>"
    assert struct_type(process.output_type).simpleString() == (
        "struct<key:string,window_start_ms:bigint,window_end_ms:bigint,n:bigint,total:double,avg:double,"
        f"dev:double,low:bigint,one:{event},tags:array<string>,about:bigint,p:array<double>,"
        f"best:array<{event}>,end:bigint,mid:double,revision:bigint,pane:string,change:string>"
    )


def test_a_look_back_carries_fields_of_its_event() -> None:
    process = window(Ev, lookback(10, keep=("tag", "x"))).aggregate(n=count())
    assert [name for name, _ in columns(process)] == ["key", "event_time_ms", "tag", "x", "n"]


def test_each_part_of_a_key_may_have_a_column() -> None:
    process = window(Ev, tumbling(10), key=("user", "page")).aggregate(n=count())
    driver = TestDriver(process)
    driver.send(("ann", "home"), Ev(), at=1)
    driver.advance_watermark(9)
    [row] = driver.values()
    assert (row.user, row.page, row.n) == ("ann", "home", 1)


def test_a_key_of_more_parts_than_columns_is_refused() -> None:
    driver = TestDriver(window(Ev, tumbling(10)).aggregate(n=count()), out_of_orderness_ms=BY_HAND)
    driver.send(("ann", "home"), Ev(), at=1)
    with pytest.raises(ProcessDefinitionError, match=r"give window.* a name for each"):
        driver.advance_watermark(9)


KINDS = [
    tumbling(10),
    tumbling(86_400_000, tz="Europe/Berlin"),
    hopping(10, every=5),
    session(5),
    session(5, max_length=20),
    session(5, cut_every=20),
    global_window(),
    sliding(10),
    lookback(10),
    count_sliding(2, idle=50),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.label)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_window_process_travels_to_a_worker_and_takes_its_state_along(kind: Any, pickler: Any) -> None:
    process = window(Ev, kind).aggregate(total=sum_of("v"), tags=collect("tag"), high=max_of("v"))
    events = [(at, Ev(at, str(at))) for at in (1, 3, 7, 12, 30)]
    here, there = (TestDriver(p, out_of_orderness_ms=BY_HAND) for p in (process, process))
    for at, event in events:
        here.send("k", event, at=at)
        there.send("k", event, at=at)
        moved = TestDriver(pickle.loads(pickler.dumps(process)), out_of_orderness_ms=BY_HAND)  # noqa: S301
        moved.host.restore(there.host.snapshot())
        moved.emissions = there.emissions
        there = moved
    here.advance_watermark(1 << 50)
    there.advance_watermark(1 << 50)
    assert [(e.event_id, e.payload) for e in here.emissions] == [
        (e.event_id, e.payload) for e in there.emissions
    ]
    assert here.emissions
    assert here.is_empty()


def test_functions_travel_by_cloudpickle() -> None:
    process = window(Ev, session(lambda e: 5 + e.gap)).aggregate(total=sum_of(lambda e: e.v * 2, type=int))
    copy = pickle.loads(cloudpickle.dumps(process))  # noqa: S301
    assert windows(play(copy, [At(1, Ev(3))]), "total") == [(1, 6, 6)]


def test_the_name_says_what_it_is_unless_given() -> None:
    assert window(Ev, hopping(10, every=5)).aggregate(n=count()).name == "ev_hopping_10ms_5ms"
    assert window(Ev, tumbling(10), name="clicks").aggregate(n=count()).name == "clicks"


def test_order_is_arrival_if_all_aggregates_commute() -> None:
    assert window(Ev, tumbling(10)).aggregate(n=count()).order.commutes
    assert window(Ev, tumbling(10)).aggregate(n=count(), p=quantile("x", 0.5)).order.mode == "event_time"
    assert window(Ev, tumbling(10), order="arrival").aggregate(p=quantile("x", 0.5)).order.commutes
    assert window(Ev, tumbling(10), order="event_time").aggregate(n=count()).order.mode == "event_time"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: window(Ev, tumbling(10)).aggregate(), "needs at least one"),
        (lambda: window(Ev, tumbling(10)).aggregate(n=3), "is an aggregate such as count"),  # type: ignore[arg-type]
        (lambda: window(Ev, tumbling(10)).aggregate(key=count()), "'key' is taken"),
        (lambda: window(Ev, tumbling(10)).aggregate(revision=count()), "'revision' is taken"),
        (lambda: window(Ev, tumbling(10), key="a b").aggregate(n=count()), "cannot be the name"),
        (lambda: window(Ev, tumbling(10), key=("a", "a")).aggregate(n=count()), "columns of one name"),
        (lambda: window(Ev, tumbling(10), emit="all").aggregate(n=count()), "emit is"),  # type: ignore[arg-type]
        (lambda: window(Ev, tumbling(10), order="any").aggregate(n=count()), "order is"),  # type: ignore[arg-type]
        (lambda: window(Ev, tumbling(10), allowed_lateness=-1).aggregate(n=count()), "not be negative"),
        (
            lambda: window(Ev, tumbling(10), emit="updates", trigger=TWO).aggregate(n=count()),
            "an early trigger needs",
        ),
        (
            lambda: window(
                Ev, tumbling(10), emit="changelog", trigger=watermark().early(count=2, discard=True)
            ).aggregate(n=count()),
            "choose one",
        ),
        (lambda: window(Ev, global_window(), allowed_lateness=5).aggregate(n=count()), "nothing is late"),
        (lambda: window(Ev, lookback(5, keep="who")).aggregate(n=count()), "no field 'who'"),
        (lambda: tumbling(0), "must be positive"),
        (lambda: tumbling(1.5), "whole milliseconds"),  # type: ignore[arg-type]
        (lambda: hopping(10, every=20), "leave out the events between"),
        (lambda: session(5, exact_gap="maybe"), "exact_gap is"),  # type: ignore[arg-type]
        (lambda: lookback(5, closed="none"), "closed is"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_definition_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(WindowDefinitionError, match=message):
        make()


def test_a_contract_knows_the_windows_so_that_others_are_refused() -> None:
    class Event(msgspec.Struct):
        n: int

    def described(assigner: Any, **how: Any) -> dict[str, Any]:
        return window(Event, assigner, name="same", **how).aggregate(n=count()).describe()

    minute = described(tumbling(minutes(1)))
    assert minute == described(tumbling(minutes(1)))
    others = [
        described(tumbling(minutes(2))),
        described(tumbling(minutes(1), offset=1_000)),
        described(hopping(minutes(1), every=minutes(1) // 2)),
        described(session(minutes(1))),
        described(tumbling(minutes(1)), allowed_lateness=5),
        described(tumbling(minutes(1)), emit="updates"),
    ]
    assert all(other != minute for other in others)
    assert len({repr(other) for other in others}) == len(others)
    assert msgspec.json.decode(msgspec.json.encode(minute)) == minute
