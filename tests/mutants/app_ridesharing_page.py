"""Mutants of the ridesharing app's page: the city at a moment, its panels, a request's story."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/ridesharing"
_CITY: Final = ("tests/unit/apps/ridesharing/test_city.py",)
_PAGE: Final = "tests/unit/apps/ridesharing/test_dashboard.py"
_PAST: Final = (f"{_PAGE}::test_the_panels_of_the_city_are_seen_as_of_a_moment_that_is_over",)
_END: Final = (f"{_PAGE}::test_a_trip_with_a_rider_that_stands_still_can_be_ended_by_a_command",)
_STORY: Final = (f"{_PAGE}::test_a_request_has_its_story_in_order_and_the_way_of_its_car",)
_LATELY: Final = ("tests/unit/millrace/dashboard/test_tables.py",)

MUTANTS: Final = (
    Mutant(
        "city: a request is shown as it was before its newest step",
        f"{_APP}/dashboard/places.py",
        '.aggregate([("revision", "max")])\n        last = pa.table({"request_id": last["request_id"], '
        '"revision": last["revision_max"]})',
        '.aggregate([("revision", "min")])\n        last = pa.table({"request_id": last["request_id"], '
        '"revision": last["revision_min"]})',
        "the newest step counts",
        _CITY,
    ),
    Mutant(
        "city: a moment knows what came after it",
        f"{_APP}/dashboard/places.py",
        'rows = _between(self._trips, "at_ms", at - OPEN_MS, at)',
        'rows = _between(self._trips, "at_ms", at - OPEN_MS, at + OPEN_MS)',
        "a moment is what was known by then",
        _CITY,
    ),
    Mutant(
        "city: cars that fell silent stay on the map",
        f"{_APP}/dashboard/places.py",
        'rows = _between(self._places, "at_ms", at - self._heard_ms, at)',
        'rows = _between(self._places, "at_ms", 0, at)',
        "silent cars are not on the map",
        _CITY,
    ),
    Mutant(
        "city: a car is where it was first heard of",
        f"{_APP}/dashboard/places.py",
        "newest[car.driver_id].at_ms < car.at_ms:",
        "newest[car.driver_id].at_ms > car.at_ms:",
        "a car is where it was last",
        _CITY,
    ),
    Mutant(
        "city: who booked ahead wants to leave at once",
        f"{_APP}/dashboard/places.py",
        '            if at - RECENT_MS < max(row["at_ms"], row["pickup_at_ms"]) <= at\n',
        '            if at - RECENT_MS < row["at_ms"] <= at\n',
        "demand is when riders want to leave",
        _CITY,
    ),
    Mutant(
        "city: all cars count as free",
        f"{_APP}/dashboard/places.py",
        'free = [car for car in cars if car.state == "free"]',
        "free = list(cars)",
        "supply is free cars",
        _CITY,
    ),
    Mutant(
        "city: riders whose car is on the way lack one",
        f"{_APP}/dashboard/places.py",
        "[r.zone for r in riders if r.state in SEARCHING],",
        "[r.zone for r in riders],",
        "shortage counts riders without a car",
        _CITY,
    ),
    Mutant(
        "city: a trip may take any time",
        f"{_APP}/dashboard/places.py",
        "if usual is not None and since > usual:",
        "if usual is not None and since > 20 * usual:",
        "trips that take too long stand out",
        _CITY,
    ),
    Mutant(
        "city: a car that is silent does not stand out",
        f"{_APP}/dashboard/places.py",
        "if self._tells_places and quiet > SILENT_MS:",
        "if silent is not None and quiet > SILENT_MS:",
        "silent cars stand out",
        _CITY,
    ),
    Mutant(
        "city: the drive is expected to take no time",
        f"{_APP}/dashboard/places.py",
        "return DRIVES * travel_ms(distance_m(*ends)) + ON_TOP_MS",
        "return ON_TOP_MS",
        "long trips take long",
        _CITY,
    ),
    Mutant(
        "page: what is over can be ended",
        f"{_APP}/dashboard/city.py",
        "offers = [_offers(s) for s in rides] if at_ms is None else ()",
        "offers = [_offers(s) for s in rides]",
        "a past moment is looked at only",
        _PAST,
    ),
    Mutant(
        "page: the list of those who wait is always the newest",
        f"{_APP}/dashboard/city.py",
        "riders = [] if found is None else found.moment(at_ms).riders",
        "riders = [] if found is None else found.moment().riders",
        "all panels of the city show the moment",
        _PAST,
    ),
    Mutant(
        "page: a trip is ended on this machine's clock though events have another",
        f"{_APP}/dashboard/city.py",
        "return now if found is None or is_near else found.until_ms",
        "return now",
        "commands have the events' time",
        _END,
    ),
    Mutant(
        "page: trips are ended whose rider is not aboard",
        f"{_APP}/dashboard/city.py",
        'return (Offer(END_TRIP, about),) if ride.state == "in_progress" else ()',
        "return (Offer(END_TRIP, about),)",
        "only trips are ended",
        _END,
    ),
    Mutant(
        "page: a story is told table by table",
        f"{_APP}/dashboard/story.py",
        "lines = sorted(tell(row) for",
        "lines = list(tell(row) for",
        "a story is in order of time",
        _STORY,
    ),
    Mutant(
        "page: a moment that is over shows what is now",
        "shared/millrace/dashboard/live.py",
        "if at_ms is not None and panel.replay is not None:",
        "if False:",
        "panels show the moment asked for",
        ("tests/unit/millrace/dashboard/test_server.py::test_panels_that_can_tell_are_seen_as_of_a_moment",),
    ),
    Mutant(
        "tables: the last while is as long as the oldest file that has a row in it",
        "shared/millrace/dashboard/tables.py",
        "return rows.filter(pc.field(column) > greatest - length)",
        "return rows",
        "the last while has its length",
        _LATELY,
    ),
    Mutant(
        "tables: a file of the last while is read at every look",
        "shared/millrace/dashboard/tables.py",
        "                if above > least:\n",
        "                if True:\n",
        "a file is read once",
        _LATELY,
    ),
    Mutant(
        "tables: files whose greatest value is not known are left out of the last while",
        "shared/millrace/dashboard/tables.py",
        'known = f"max.{column}" in self._actions.column_names\n',
        'known = f"max.{column}" in self._actions.column_names\n        if not known:\n'
        "            return []\n",
        "files without statistics are read",
        _LATELY,
    ),
)
