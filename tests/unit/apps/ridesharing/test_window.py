"""Who may be offered a ride at the end of a window."""

from __future__ import annotations

from typing import Any

import pytest

from millrace_apps.ridesharing.processes.window import free_cars
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car
from tests.unit.apps.ridesharing.cases import LAT, LON, START

TTL_MS = 120_000


def car(**more: Any) -> Car:
    fields = {"lat": LAT, "lon": LON, "seen_ms": START, "kind": 0, "idle": True, "free_since_ms": START}
    return Car(**(fields | more))


def book_with(found: Car, **blocked: int) -> Book:
    book = Book()
    book.cars["d1"] = found
    book.blocked.update(blocked)
    return book


@pytest.mark.parametrize(
    ("more", "now", "free"),
    [
        ({}, START, True),
        ({"request_id": "r1"}, START, False),
        ({"idle": False}, START, False),
        ({"online": False}, START, False),
        ({}, START + TTL_MS, True),
        ({}, START + TTL_MS + 1, False),
    ],
    ids=["free", "with a ride", "busy by its phone", "off line", "heard of just so", "not heard of"],
)
def test_a_car_is_free_if_it_has_no_ride_and_says_so_and_was_heard_of(
    more: dict[str, Any], now: int, free: bool
) -> None:
    book = book_with(car(**more))
    assert [found.driver_id for found in free_cars(book, now, TTL_MS)] == ["d1"] * free


def test_a_blocked_driver_is_free_again_when_the_block_is_over() -> None:
    book = book_with(car(), d1=START + 1_000)
    assert free_cars(book, START + 999, TTL_MS) == []
    assert len(free_cars(book, START + 1_000, TTL_MS)) == 1
