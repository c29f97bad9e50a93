"""Mutants of prices in the ridesharing app: surge, quotes that are kept, caps, the demo's checks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/ridesharing"
_PROCESS: Final = f"{_APP}/surge/process.py"
_CHECKS: Final = f"{_APP}/evaluation/demo_prices.py"
_TESTS: Final = "tests/unit/apps/ridesharing"
_SURGE: Final = (f"{_TESTS}/test_surge.py::test_quotes_fares_and_multipliers_are_those_counted_anew",)
_RECOUNT: Final = (f"{_TESTS}/test_surge.py::test_what_is_recounted_from_the_tables_is_what_was_told",)
_MOVES: Final = (
    f"{_TESTS}/test_surge.py::test_a_multiplier_keeps_its_step_its_cap_and_turns_twice_an_hour_at_most",
)
_LONG: Final = (
    f"{_TESTS}/test_surge.py::test_a_multiplier_moves_where_the_ratio_has_asked_for_it_for_long_enough",
)
_NEAR: Final = (
    f"{_TESTS}/test_matching.py::test_where_many_ask_who_has_not_waited_long_has_only_the_cars_nearby",
)
_TAKEN: Final = (
    f"{_TESTS}/test_prices.py::test_cars_that_are_taken_and_riders_who_wait_are_told_once_and_as_they_are",
)
_PRICES: Final = (f"{_TESTS}/test_prices.py",)
_DEMO: Final = (f"{_TESTS}/test_demo.py",)
_PAGE: Final = (f"{_TESTS}/test_dashboard.py",)
_AGENTS: Final = ("tests/unit/generators/test_ridesharing_agents.py",)

MUTANTS: Final = (
    Mutant(
        "prices: what was asked five minutes ago counts for ever",
        _PROCESS,
        "            for told in counts:\n",
        "            for told in counts[1:]:\n",
        "sliding five minutes",
        _SURGE,
    ),
    Mutant(
        "prices: cars of the end of an epoch count in the next",
        _PROCESS,
        "self._go_on(now // config.epoch_ms - 1, ctx)",
        "self._go_on(now // config.epoch_ms, ctx)",
        "cars of an epoch count in it",
        _SURGE,
    ),
    Mutant(
        "prices: a multiplier rises again at once",
        _PROCESS,
        "(config.hold_ms if way < 0 else config.rise_again_ms)",
        "(config.hold_ms if way < 0 else 0)",
        "turns twice an hour at most",
        _MOVES,
    ),
    Mutant(
        "prices: a multiplier jumps to its target",
        _PROCESS,
        "min(max(goal - now, -config.step), config.step)",
        "(goal - now)",
        "a step at most",
        _MOVES,
    ),
    Mutant(
        "prices: a multiplier falls while the crowd is there",
        _PROCESS,
        "crowd <= config.gone * cell.crowd",
        "crowd",
        "a multiplier falls where the crowd is gone",
        _LONG,
    ),
    Mutant(
        "prices: one dear epoch is enough",
        _PROCESS,
        "    least = min(lately) if len(lately) == config.rise_epochs else 1.0\n",
        "    least = target\n",
        "a multiplier rises when the ratio has asked for it for some epochs",
        _LONG,
    ),
    Mutant(
        "prices: one cheap epoch is enough",
        _PROCESS,
        "    down_to = min(max(cell.targets), cap)\n",
        "    down_to = min(target, cap)\n",
        "a multiplier falls when the ratio has asked for it for some minutes",
        _LONG,
    ),
    Mutant(
        "prices: who waits does not count",
        _PROCESS,
        "crowd + config.queue * config.with_neighbours(near, waits)",
        "crowd",
        "demand is who asked and who waits",
        _SURGE,
    ),
    Mutant(
        "prices: a car that stands free counts like one that is taken",
        _PROCESS,
        "config.stock * stood",
        "stood",
        "a stock is there once",
        _SURGE,
    ),
    Mutant(
        "prices: a car is told as taken as long as it is",
        f"{_APP}/processes/window.py",
        "and since <= ride.offered_ms < region.now",
        "and ride.offered_ms < region.now",
        "a car is taken once",
        _TAKEN,
    ),
    Mutant(
        "prices: who waits where there is no car is not told of",
        f"{_APP}/processes/dispatcher.py",
        "counts = book.cars or (name == _FREE and book.searching)",
        "counts = book.cars",
        "demand is who asked and who waits",
        _PRICES,
    ),
    Mutant(
        "prices: the evaluation prices before it knows which cars there are",
        f"{_APP}/surge/world.py",
        "self._chain.advance_watermark(ms - 1)",
        "self._chain.advance_watermark(ms + 1)",
        "cars of an epoch count in it",
        (f"{_TESTS}/test_surge.py::test_prices_of_the_evaluation_go_by_what_the_dispatcher_says",),
    ),
    Mutant(
        "ridesharing matching: who has waited long has near cars alone",
        f"{_APP}/processes/matching.py",
        "        if rider.waiting_ms < rules.near_ms:\n",
        "        if rules.near_ms:\n",
        "near cars first, and then any",
        _NEAR,
    ),
    Mutant(
        "ridesharing matching: near cars alone where hardly anybody asks",
        f"{_APP}/processes/matching.py",
        "if c in demand]) >= _ENOUGH_A_MINUTE:\n",
        "if c in demand]) >= 0.0:\n",
        "near cars first where one comes free soon",
        _NEAR,
    ),
    Mutant(
        "prices: riders of the evaluation take every quote",
        f"{_APP}/surge/world.py",
        "self.quotes[request_id].multiplier ** self.riders_e",
        "1.0",
        "elasticity of riders",
        (
            f"{_TESTS}/test_surge.py::test_riders_and_drivers_follow_prices_and_every_quote_is_the_one_in_force",
        ),
    ),
    Mutant(
        "prices: a quote holds for ever",
        _PROCESS,
        "if now > held.at_ms + self.config.valid_ms:",
        "if now > held.at_ms + (1 << 50):",
        "an expired quote is not kept",
        _SURGE,
    ),
    Mutant(
        "prices: a quote is anybody's",
        _PROCESS,
        "if held.rider_id != event.rider_id:",
        'if held.rider_id == "":',
        "a foreign quote is not kept",
        _SURGE,
    ),
    Mutant(
        "prices: a quote is good for many requests",
        _PROCESS,
        "        held.request_id = event.subject\n",
        "",
        "a quote is taken once",
        _SURGE,
    ),
    Mutant(
        "prices: a quote for later is one for now",
        _PROCESS,
        "if held.booked != booked or not",
        "if not",
        "a quote holds for the time that was asked for",
        _SURGE,
    ),
    Mutant(
        "prices: who takes a quote counts twice",
        _PROCESS,
        "            if held is not None:\n                return  # who takes",
        "            if held is None and booked:\n                return  # who takes",
        "demand counts riders once",
        _SURGE,
    ),
    Mutant(
        "prices: a rider who asks again and again counts each time",
        _PROCESS,
        "if not booked and (last is None or now - last >= config.epochs * config.epoch_ms):",
        "if not booked:",
        "demand counts riders once",
        _PRICES,
    ),
    Mutant(
        "prices: a cap lowers nobody",
        _PROCESS,
        "                if cell.multiplier > cap:\n",
        "                if cell.multiplier > 100 * cap:\n",
        "no price above the cap",
        _PRICES,
    ),
    Mutant(
        "prices: a cap is rounded up",
        _PROCESS,
        "    return near if near <= cap else round(near - 0.01, _DIGITS)\n",
        "    return near\n",
        "no price above the cap, to the hundredth",
        _PRICES,
    ),
    Mutant(
        "prices: a cap holds before its time",
        _PROCESS,
        "self.caps.view(_in_order)) if start <= at)",
        "self.caps.view(_in_order)) if start <= at + 600_000)",
        "a cap holds from its time on",
        _PRICES,
    ),
    Mutant(
        "prices: two regions price one cell",
        _PROCESS,
        "if config.regions.is_one or config.regions.of_zone(other) == ctx.key:",
        "if config.neighbours:",
        "a cell has one region",
        _PRICES,
    ),
    Mutant(
        "prices: the gate goes by the place and not by its cell",
        f"{_APP}/processes/gate.py",
        "region = self.config.regions.of_zone(cell)",
        "region = self.config.regions.of_place(event.pickup_lat, event.pickup_lon)",
        "a cell has one region",
        _PRICES,
    ),
    Mutant(
        "prices: cars that cannot be had are free",
        f"{_APP}/processes/window.py",
        "[(car.lat, car.lon) for car in free_cars(book, region.now, region.config.ttl_ms)],",
        "[(car.lat, car.lon) for car in book.cars.values()],",
        "supply is who could be offered a ride",
        _PRICES,
    ),
    Mutant(
        "prices: a switch is told again and again",
        f"{_APP}/processes/switches.py",
        "bisect_right(kept, max(told, f",
        'bisect_right(kept, max("", f',
        "the trail has each switch once",
        _PRICES,
    ),
    Mutant(
        "prices: a switch is told before it holds",
        f"{_APP}/processes/switches.py",
        "if switch.from_ms > region.now:",
        "if switch.from_ms > region.now + 60_000_000:",
        "the trail says when it holds",
        _PRICES,
    ),
    Mutant(
        "prices: the recount knows no neighbours",
        f"{_APP}/surge/recount.py",
        "share = config.neighbours**ring",
        "share = float(ring == 0)",
        "the recount is the law",
        _RECOUNT,
    ),
    Mutant(
        "checks: changes of multipliers that are missing are not missed",
        _CHECKS,
        'same("changes of multipliers = those counted anew", set(anew), set(changes)),',
        'same("changes of multipliers = those counted anew", set(anew) & set(changes), set(changes)),',
        "each change is there",
        _DEMO,
    ),
    Mutant(
        "checks: any price is right",
        _CHECKS,
        'sum(row["multiplier"] != multiplier_at(levels, row["cell"], row["at_ms"]) for row in priced)',
        'sum(row["multiplier"] < 1.0 for row in priced)',
        "prices are those counted anew",
        _DEMO,
    ),
    Mutant(
        "checks: a quote that is not kept is not missed",
        _CHECKS,
        '    broken = sum(not is_kept(t.entity, t.detail["multiplier"]) for t in taken)\n',
        "    broken = 0\n",
        "quotes are kept",
        _DEMO,
    ),
    Mutant(
        "checks: any cap will do",
        _CHECKS,
        "            most <= config.cap,\n",
        "            most <= 10 * config.cap,\n",
        "no multiplier above the cap",
        _DEMO,
    ),
    Mutant(
        "city: a cell has the multiplier of the end at any moment",
        f"{_APP}/dashboard/places.py",
        "for from_ms, cell, multiplier in self._surge if from_ms <= at}",
        "for from_ms, cell, multiplier in self._surge}",
        "a moment is what was known by then",
        (f"{_TESTS}/test_city.py",),
    ),
    Mutant(
        "page: any cap is sent",
        f"{_APP}/dashboard/prices.py",
        "    if not 1.0 <= cap <= 10.0:\n",
        "    if cap < 0.0:\n",
        "a cap is a number from 1 to 10",
        _PAGE,
    ),
    Mutant(
        "rides: riders take every quote",
        "generators/ridesharing/rides.py",
        "if quote.multiplier >= ride.takes_below:",
        "if quote.multiplier < 0.0:",
        "elasticity of the world's riders",
        _AGENTS,
    ),
)
