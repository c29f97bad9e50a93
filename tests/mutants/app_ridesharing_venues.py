"""Mutants of venues: whose turn it is, who keeps a place, short trips, pick-up points, the map."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/ridesharing"
_VENUES: Final = f"{_APP}/processes/venues.py"
_TESTS: Final = "tests/unit/apps/ridesharing/test_venues.py"
_RULES: Final = "tests/unit/apps/ridesharing/test_venue_rules.py"
_PAGE: Final = "tests/unit/apps/ridesharing/test_dashboard.py"
_LINE: Final = f"{_APP}/processes/line.py"
_KEPT: Final = f"{_APP}/state/venues.py"
_AUDIT: Final = f"{_APP}/topic_audit/lines.py"
_DRAWN: Final = f"{_APP}/dashboard/venues.py"


_VERSIONS: Final = (
    "tests/unit/apps/ridesharing/test_venue_versions.py"
    "::test_what_is_said_last_of_a_venue_holds_from_its_time_on",
)


def _of(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TESTS}::test_{name}" for name in names)


def _rules(*names: str) -> tuple[str, ...]:
    return tuple(f"{_RULES}::test_{name}" for name in names)


def _page(*names: str) -> tuple[str, ...]:
    return tuple(f"{_PAGE}::test_{name}" for name in names)


_NIGHTS: Final = _of("lines_and_offers_are_those_of_a_replay_of_positions_and_answers")
_FIRST: Final = _rules("who_is_back_from_a_short_trip_in_time_is_first_in_line_and_is_told_so")
_NO_TICKET: Final = _rules("a_trip_that_is_not_short_or_a_return_too_late_earns_nothing")
_AUDITED: Final = _rules(
    "the_audit_finds_a_ticket_that_was_not_honoured_and_a_turn_that_was_not_earned",
)
_NAMED: Final = _rules("a_rider_meets_the_car_at_the_point_that_was_asked_for_else_at_the_nearest_open_one")
_BORDER: Final = _rules("a_zone_that_reaches_over_a_border_within_one_cell_is_refused_with_both_regions")
_ON_MAP: Final = _page("venues_are_drawn_with_their_lines_as_of_the_moment")

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
        f"{_APP}/processes/dispatch_region.py",
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
        f"{_APP}/processes/dispatch_region.py",
        '        if attempt in ("rejected", "expired") and self.config.decline_costs_place:\n'
        "            self.book.lose_spot(driver_id)\n",
        "",
        "a no costs the place",
        _of("a_no_costs_the_place_unless_settings_say_otherwise"),
    ),
    Mutant(
        "venues: drivers in line are asked from everywhere",
        _VENUES,
        "    if region.config.line_elsewhere:\n",
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
        "ride.lat, ride.lon, ride.point = point.lat, point.lon, point.name",
        "ride.point = point.name",
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
        "one.late_ms < other.early_ms",
        "False",
        "offers out of turn are found",
        _of("an_offer_out_of_turn_is_found_by_the_topics"),
    ),
    Mutant(
        "short trips: a ticket is no place in front",
        _VENUES,
        "Turn(not spot.ticket, spot.joined_ms, driver_id)",
        "Turn(True, spot.joined_ms, driver_id)",
        "who has a ticket comes first",
        (*_FIRST, *_NIGHTS),
    ),
    Mutant(
        "short trips: a ticket is not spent",
        _LINE,
        "    del book.tickets[driver_id]\n",
        "",
        "a ticket counts once",
        _rules("a_ticket_counts_once"),
    ),
    Mutant(
        "short trips: a ticket holds for good",
        _LINE,
        "not ticket.earned_ms <= at_ms <= ticket.until_ms",
        "not ticket.earned_ms <= at_ms",
        "who is back too late has none; it is forgotten then, too, so that only a late deadline shows it",
        _rules("a_ticket_is_judged_by_the_time_of_the_position"),
    ),
    Mutant(
        "short trips: a ticket is never forgotten",
        f"{_APP}/processes/dispatcher.py",
        "                del book.tickets[about[2:]]\n",
        "                pass\n",
        "nothing outlives a ticket",
        _rules("a_ticket_outlives_the_car_in_the_book_and_nothing_outlives_the_ticket"),
    ),
    Mutant(
        "short trips: every trip is quick",
        _LINE,
        "(short.minutes and at_ms - ride.accepted_ms > short.minutes * _MINUTE_MS)",
        "False",
        "minutes",
        _NO_TICKET,
    ),
    Mutant(
        "short trips: every trip is near",
        _LINE,
        "    if short.km and distance_m",
        "    if False and distance_m",
        "kilometres",
        _NO_TICKET,
    ),
    Mutant(
        "short trips: nobody need be aboard",
        _LINE,
        '    if not venue or ride.state != "in_progress" or not',
        "    if not venue or not",
        "a trip has a rider",
        _rules("a_trip_from_elsewhere_or_without_a_rider_earns_nothing"),
    ),
    Mutant(
        "short trips: trips from elsewhere count",
        f"{_APP}/processes/dispatch_region.py",
        " if ride.policy == LINE else None",
        "",
        "only trips from the line count",
        _rules("a_trip_from_elsewhere_or_without_a_rider_earns_nothing"),
    ),
    Mutant(
        "short trips: a ticket outlives its venue",
        _LINE,
        "    return venues.has_line(venue, ticket.earned_ms, at_ms)\n\n\ndef ticket_for",
        "    return True\n\n\ndef ticket_for",
        "a removed venue takes its tickets along",
        _rules("a_ticket_of_a_venue_that_was_removed_is_none_at_that_of_the_same_name"),
    ),
    Mutant(
        "short trips: other regions forget tickets",
        f"{_APP}/operations/rekeying.py",
        "tickets[driver_id] = max(",
        "_ = max(",
        "regions that become others keep tickets",
        _rules("a_ticket_goes_with_its_venue_where_regions_become_others"),
    ),
    Mutant(
        "short trips: the audit knows no tickets",
        _AUDIT,
        '    if one.ticket == "yes" and other.ticket == "no":\n        return True\n',
        "",
        "a ticket that was passed over is found",
        _AUDITED,
    ),
    Mutant(
        "short trips: the audit gives everybody a ticket",
        _AUDIT,
        '        if all(short == "no" for short in shorts):\n            return None\n',
        "",
        "a place in front that was not earned is found",
        _AUDITED,
    ),
    Mutant(
        "short trips: the audit lets tickets hold for good",
        _AUDIT,
        "t.earned_ms <= at <= t.until_ms]",
        "t.earned_ms <= at]",
        "a place in front after its time is found",
        _AUDITED,
    ),
    Mutant(
        "venues: who waits when reading begins has just come, for the audit",
        _AUDIT,
        "                    now.early_ms = NEVER",
        "                    pass",
        "with --since nobody is blamed for what was before",
        _rules("who_may_have_waited_before_anything_was_read_may_be_first"),
    ),
    Mutant(
        "audit from the topics: of what holds on only the newest is read",
        "shared/millrace/operations/reading.py",
        "    later = [place for place in begins if place[0] not in whole]\n",
        "    later = list(begins)\n",
        "venues of before are known to an audit with --since",
        (
            "tests/unit/millrace/operations/test_reading.py"
            "::test_a_topic_whose_words_hold_on_is_read_from_the_first_record_that_is_left",
        ),
    ),
    Mutant(
        "points: the name is not heard",
        _KEPT,
        '        if named is not None and named.is_open:\n            return name, named, ""\n',
        "",
        "riders name points",
        (*_NAMED, *_NIGHTS),
    ),
    Mutant(
        "points: riders are sent to a point that is closed",
        _KEPT,
        "if named is not None and named.is_open:",
        "if named is not None:",
        "a closed point is none",
        (*_NAMED, *_NIGHTS),
    ),
    Mutant(
        "points: the audit takes any name",
        f"{_APP}/topic_audit/offers.py",
        "    elif offer.pickup_point and offer.pickup_point not in names:",
        "    elif False:",
        "the name is that of the place",
        _rules("the_audit_holds_the_name_of_the_point_against_its_place"),
    ),
    Mutant(
        "points: the audit knows of the nearest alone",
        _AUDIT,
        "for p in named or points}",
        "for p in points}",
        "riders name points",
        _rules("tickets_and_points_hold_by_the_topics_in_an_evening_at_the_airport"),
    ),
    Mutant(
        "venues: a zone is where its cells are counted to",
        _KEPT,
        "                found.add(regions.of_place(*place))\n",
        "                pass\n",
        "a fine cell reaches out of its parent",
        _BORDER,
    ),
    Mutant(
        "venues: of two words of one moment the second begins a line anew",
        _KEPT,
        "if one.from_ms < watermark]",
        "if one.from_ms <= watermark]",
        "a venue goes on when it is changed",
        (*_of("two_words_on_a_venue_in_one_moment_leave_its_line_as_it_is"), *_VERSIONS),
    ),
    Mutant(
        "venues: what is to come cannot be taken back",
        _KEPT,
        "        elif all(one.plan is None or one.from_ms < from_ms for one in before):\n",
        "        elif True:\n",
        "the last word takes back what was to come",
        _VERSIONS,
    ),
    Mutant(
        "venues: the gate takes a venue that has come back for the one before",
        f"{_APP}/processes/gate.py",
        "        return bool(here) and not venues.has_line(here, track.sent_ms, at)\n",
        "        return False\n",
        "who is first in a pen is first in line",
        _of("whoever_is_first_in_the_pen_of_a_venue_that_has_come_back_is_first_in_its_line"),
    ),
    Mutant(
        "venues: who is back while an offer is open is away",
        _LINE,
        "            spot.away_ms = 0\n        return\n",
        "            pass\n        return\n",
        "the grace is for who is out of the pen",
        _of("who_comes_back_to_the_pen_while_an_offer_is_open_has_been_away_no_longer"),
    ),
    Mutant(
        "venues: each version is told again and again",
        _VENUES,
        "        if shown.get(name) == digest:\n            continue\n",
        "",
        "each version is told once",
        _rules("each_version_of_a_venue_is_told_once_when_it_holds"),
    ),
    Mutant(
        "venues: every region tells of every venue",
        _VENUES,
        "        if not home or region.config.regions.of_zone(home) != region.name:\n            continue\n",
        "",
        "the region of the line tells",
        _rules("a_venue_is_told_by_the_region_that_has_its_line_and_no_other"),
    ),
    Mutant(
        "map: venues are those of now at any moment",
        f"{_APP}/dashboard/city.py",
        "drawn(data, moment.at_ms, len(_KINDS))",
        "drawn(data, found.until_ms, len(_KINDS))",
        "the slider shows venues as they were",
        _ON_MAP,
    ),
    Mutant(
        "map: a line of which nothing is told stays",
        _DRAWN,
        " and at_ms - words[place].at_ms <= EMPTY_MS",
        "",
        "an empty line is empty",
        _page("a_line_of_which_nothing_was_told_of_late_is_empty_on_the_map"),
    ),
    Mutant(
        "map: holes of areas are filled",
        _DRAWN,
        "for r in (part.outer, *part.holes)]",
        "for r in (part.outer,)]",
        "an edge goes around holes, too",
        _page("the_edge_of_an_area_goes_around_its_cells_and_its_holes"),
    ),
    Mutant(
        "map: all versions of venues are kept",
        _DRAWN,
        "            left = versions[max(first, len(versions) - _MOST_VERSIONS) :]\n",
        "            left = versions\n",
        "what no moment can show is forgotten",
        _page("versions_of_venues_are_forgotten_that_no_moment_can_show"),
    ),
)
