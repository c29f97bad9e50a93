"""Mutants of the lines of venues: whose turn it is, who keeps a place, where riders are picked up."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/ridesharing"
_VENUES: Final = f"{_APP}/processes/venues.py"
_TESTS: Final = "tests/unit/apps/ridesharing/test_venues.py"


def _of(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TESTS}::test_{name}" for name in names)


MUTANTS: Final = (
    Mutant(
        "venues: who has come last is first",
        _VENUES,
        "    return {venue: sorted(line) for",
        "    return {venue: sorted(line, reverse=True) for",
        "whose turn it is",
        _of("a_request_in_the_zone_is_offered_to_who_has_waited_longest_and_not_to_the_nearest"),
    ),
    Mutant(
        "venues: a place is kept however long the driver is away",
        f"{_APP}/processes/line.py",
        "    if spot.away_ms and at_ms - spot.away_ms > grace_ms:\n        return False\n",
        "",
        "the grace",
        _of("a_place_is_kept_for_the_grace_and_no_longer"),
    ),
    Mutant(
        "venues: who takes a ride keeps the place",
        f"{_APP}/processes/desk.py",
        "        self.book.lose_spot(ride.driver_id)\n        metres",
        "        metres",
        "who takes a ride is in no line",
        _of(
            "who_goes_off_line_or_takes_a_ride_is_in_no_line",
            "lines_and_offers_are_those_of_a_replay_of_positions_and_answers",
        ),
    ),
    Mutant(
        "venues: a no costs nothing",
        f"{_APP}/processes/desk.py",
        '        if attempt in ("rejected", "expired") and self.config.decline_costs_place:\n'
        "            self.book.lose_spot(driver_id)\n",
        "",
        "a no costs the place",
        _of("a_no_costs_the_place_unless_settings_say_otherwise"),
    ),
    Mutant(
        "venues: drivers in line are asked from everywhere",
        _VENUES,
        "    if desk.config.line_elsewhere:\n",
        "    if True:\n",
        "the line is the venue's",
        _of("who_waits_in_line_is_not_asked_from_elsewhere_unless_settings_say_so"),
    ),
    Mutant(
        "venues: the line outlives its venue",
        f"{_APP}/state/venues.py",
        " and held.version.since_ms <= since_ms",
        "",
        "a removed venue empties its line",
        _of("a_place_in_the_line_of_before_is_none_in_that_of_a_venue_of_the_same_name"),
    ),
    Mutant(
        "venues: riders are told of a point, and drivers are not",
        _VENUES,
        "    ride.lat, ride.lon = point.lat, point.lon\n",
        "",
        "both are sent to one place",
        _of("rider_and_driver_are_sent_to_the_nearest_point_that_is_open"),
    ),
    Mutant(
        "venues: the gate keeps back who comes into a pen",
        f"{_APP}/processes/gate.py",
        " or self._in_and_out(track, lat, lon, at)",
        "",
        "the first position in a pen counts",
        _of("the_gate_lets_every_position_pass_that_is_the_first_in_a_pen_or_out_of_it"),
    ),
    Mutant(
        "venues: other regions forget who waits",
        f"{_APP}/operations/rekeying.py",
        "                    to[self._drivers[driver_id]].spots[driver_id] = spot\n",
        "                    pass\n",
        "regions that become others keep lines",
        _of("a_line_goes_with_its_venue_where_regions_become_others"),
    ),
    Mutant(
        "venues: the audit does not ask who was ahead",
        f"{_APP}/topic_audit/lines.py",
        "other.late_ms < place.early_ms",
        "False",
        "offers out of turn are found",
        _of("an_offer_out_of_turn_is_found_by_the_topics"),
    ),
)
