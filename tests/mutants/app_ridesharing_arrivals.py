"""Mutants of arrival times in the ridesharing app: ways, what riders are told, costs, the demo's checks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/ridesharing"
_ARRIVALS: Final = f"{_APP}/processes/arrivals.py"
_TIMES: Final = f"{_APP}/eta/times.py"
_TESTS: Final = "tests/unit/apps/ridesharing/test_arrivals.py"
_EVENINGS: Final = (f"{_TESTS}::test_ways_of_any_evening_are_those_that_the_trips_tell_and_the_audit_holds",)
_EXPLAINED: Final = ("tests/unit/apps/ridesharing/test_arrivals_explained.py",)
_COSTS: Final = (f"{_TESTS}::test_the_matcher_costs_a_pair_as_its_way_is_told",)
_MOVES: Final = (f"{_TESTS}::test_while_the_car_moves_its_rider_is_told_by_what_is_left",)
_MATCHING: Final = ("tests/unit/apps/ridesharing/test_matching.py",)

MUTANTS: Final = (
    Mutant(
        "arrivals: offers are told the way back",
        _ARRIVALS,
        "Place(car.lat, car.lon, ride.lat, ride.lon), now, driver_id)",
        "Place(ride.lat, ride.lon, car.lat, car.lon), now, driver_id)",
        "every offer is explained",
        _EXPLAINED,
    ),
    Mutant(
        "arrivals: nobody counts ways that begin",
        _ARRIVALS,
        "        times.begin(now)\n",
        "",
        "how busy it is",
        _EXPLAINED,
    ),
    Mutant(
        "arrivals: of a rider who is told very often the first times count",
        _ARRIVALS,
        "        way.said[MOST_TOLD - 1 :] = [arrives]\n",
        "        way.said += [arrives][: MOST_TOLD - len(way.said)]\n",
        "the last time is the last",
        (f"{_TESTS}::test_of_a_rider_who_is_told_very_often_the_last_time_counts_as_the_last",),
    ),
    Mutant(
        "arrivals: what the book ended is learned from",
        _ARRIVALS,
        " and way.driver_id == driver_id and cause in _SAID:",
        " and way.driver_id == driver_id:",
        "only what drivers have ended is a way",
        (f"{_TESTS}::test_only_what_drivers_have_ended_is_a_way", *_EVENINGS),
    ),
    Mutant(
        "arrivals: rides booked for later are learned from",
        _ARRIVALS,
        "        if way.counts:\n",
        "        if True:\n",
        "nobody hurries to a ride that is booked for later",
        (f"{_TESTS}::test_of_a_ride_that_is_booked_for_later_nothing_is_learned",),
    ),
    Mutant(
        "arrivals: riders are told from now on, not from where the car was",
        _ARRIVALS,
        "way.seen_ms + round(s * share * 1_000)",
        "region.now + round(s * share * 1_000)",
        "an old position is an old position",
        _MOVES,
    ),
    Mutant(
        "arrivals: riders are told the whole way again",
        _ARRIVALS,
        "left_m / max(way.metres, 1.0))",
        "1.0)",
        "what is left takes its share",
        _MOVES,
    ),
    Mutant(
        "arrivals: the matcher forgets the shift of short ways",
        _ARRIVALS,
        "straight_s * factors[place] - shift_s, 0.0)",
        "straight_s * factors[place], 0.0)",
        "a pair costs what its way is told",
        _COSTS,
    ),
    Mutant(
        "arrivals: the matcher looks up ways the other way round",
        _ARRIVALS,
        'pairs = [f"{a}>{b}" for a, b in zip(begins, ends, strict=True)]',
        'pairs = [f"{b}>{a}" for a, b in zip(begins, ends, strict=True)]',
        "a pair costs what its way is told",
        _COSTS,
    ),
    Mutant(
        "arrivals: trips and ways to riders are learned together",
        _TIMES,
        'PICKUP: Final = Kind("pickup", "p:", 30.0)',
        'PICKUP: Final = Kind("pickup", "", 30.0)',
        "ways to riders and trips are apart",
        (f"{_TESTS}::test_ways_to_riders_and_trips_are_learned_apart",),
    ),
    Mutant(
        "arrivals: intervals never learn",
        _TIMES,
        "            self._widths.put(_by(expected.version), width)\n",
        "            pass\n",
        "nine of ten",
        (f"{_TESTS}::test_intervals_of_the_table_come_to_hold_nine_of_ten",),
    ),
    Mutant(
        "arrivals: estimates have the shift of short ways",
        _TIMES,
        "max(_LEAST_S, seconds - self.kind.shift_s)",
        "max(_LEAST_S, seconds)",
        "the table made anew",
        _EVENINGS,
    ),
    Mutant(
        "matcher: where a ride ends is no matter",
        f"{_APP}/processes/matching.py",
        " + drops[rider]",
        "",
        "a car that ends where nobody asks is missed",
        _MATCHING,
    ),
    Mutant(
        "matcher: demand near the drop-off is dear",
        f"{_APP}/processes/matching.py",
        "rules.drop_value_ms * (1.0 - min(1.0, asked / _ENOUGH_A_MINUTE))",
        "rules.drop_value_ms * min(1.0, asked / _ENOUGH_A_MINUTE)",
        "a car that ends where nobody asks is missed",
        _MATCHING,
    ),
    Mutant(
        "demo: nobody counts ways that no rider was told of",
        f"{_APP}/evaluation/demo_arrivals.py",
        "0, len(began - told), of=len(began)",
        "0, 0, of=len(began)",
        "the demo's checks",
        ("tests/unit/apps/ridesharing/test_demo.py",),
    ),
)
