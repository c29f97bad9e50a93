"""The small worlds: trades, requests and orders; what is planned in them and what is ordinary."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from itertools import islice, pairwise
from statistics import mean, pvariance
from typing import Any

import msgspec
import pytest

from millrace.errors import UserError
from millrace_apps.generators.engine.simulated import Domain, Simulated
from millrace_apps.generators.small import ORDERS, STOCKS, WEBLOGS
from millrace_apps.generators.small.orders import OVERDUE, STEPS, OrdersProfile, Warehouse
from millrace_apps.generators.small.slots import Zipf

DOMAINS = [pytest.param(domain, id=domain.name) for domain in (STOCKS, WEBLOGS, ORDERS)]


def run(domain: Domain, events: int, **parameters: Any) -> list[Simulated]:
    return list(domain.simulate(domain.profile(events=events, **parameters)))


def digest(events: Iterable[Simulated]) -> str:
    return hashlib.sha256(b"\n".join(msgspec.json.encode(event) for event in events)).hexdigest()


def by_truth(events: Iterable[Simulated], kind: str) -> list[list[Simulated]]:
    """Events of each whole happening of a kind."""
    found: defaultdict[str, list[Simulated]] = defaultdict(list)
    for event in events:
        for truth in event.truths:
            if truth.kind == kind:
                found[truth.truth_id].append(event)
    return [part for part in found.values() if len(part) == part[0].truths[0].detail["size"]]


@pytest.mark.parametrize("domain", DOMAINS)
def test_same_profile_same_bytes_and_a_shorter_run_is_a_prefix(domain: Domain) -> None:
    whole = run(domain, 3_000, seed=7)
    assert digest(whole) == digest(run(domain, 3_000, seed=7))
    # The last event of a run keeps its slot, whatever else is planned: all before it are the same.
    assert digest(whole[:1_000]) == digest(run(domain, 1_001, seed=7)[:-1])
    assert digest(whole) != digest(run(domain, 3_000, seed=8))


@pytest.mark.parametrize(
    ("domain", "bytes_of"),
    [(STOCKS, "baa112173c8422c9"), (WEBLOGS, "bc9097db28c749e7"), (ORDERS, "4bcf90fdbb07aa91")],
)
def test_the_bytes_of_this_version_are_known(domain: Domain, bytes_of: str) -> None:
    """A change of these bytes is a change of every stream that somebody keeps: say so in the change log."""
    assert digest(run(domain, 2_000, seed=1))[:16] == bytes_of


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("event_rate", [0.5, 1_000.0, 50_000.0])
def test_events_come_in_event_time_with_unique_ids_and_are_valid(domain: Domain, event_rate: float) -> None:
    events = run(domain, 3_000, seed=3, event_rate=event_rate)
    assert len(events) == 3_000
    times = [event.event_time_ms for event in events]
    assert times == sorted(times)
    ((name, stream),) = domain.streams.items()
    ids = {getattr(event.event, stream.id_field) for event in events}
    assert len(ids) == len(events)
    assert not ids & {getattr(e.event, stream.id_field) for e in run(domain, 50, seed=3, start_ms=0)}
    for event in events:
        assert event.stream == name
        assert getattr(event.event, stream.time_field) == event.event_time_ms
        # A struct checks its types and ranges when it is read.
        assert msgspec.json.decode(msgspec.json.encode(event.event), type=stream.event_type) == event.event


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_last_event_is_not_before_the_time_that_the_profile_promises(domain: Domain) -> None:
    for events in (1, 10, 2_000):
        profile = domain.profile(events=events, seed=5)
        assert profile.last_ms is not None
        assert list(domain.simulate(profile))[-1].event_time_ms >= profile.last_ms


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_scenario_occurs_and_no_other_kind(domain: Domain) -> None:
    events = run(domain, 20_000, seed=2)
    assert {truth.kind for event in events for truth in event.truths} == set(domain.scenarios)


@pytest.mark.parametrize(
    ("domain", "off"),
    [(STOCKS, {"scenario_rate": 0.0}), (WEBLOGS, {"attack_rate": 0.0}), (ORDERS, {"deviation_rate": 0.0})],
)
def test_without_scenarios_there_is_no_truth(domain: Domain, off: dict[str, float]) -> None:
    assert not any(event.truths for event in run(domain, 3_000, seed=2, **off))


@pytest.fixture(scope="module")
def trades() -> list[Simulated]:
    return run(STOCKS, 30_000, seed=4, symbols=20)


def test_a_jump_is_one_trade_far_beyond_the_steps_before(trades: list[Simulated]) -> None:
    prices = {symbol: [e for e in trades if e.key == symbol] for symbol in {e.key for e in trades}}
    seen = 0
    for symbol, series in prices.items():
        for before, after in pairwise(series):
            if any(truth.kind == "jump" for truth in after.truths):
                # Half a cent of rounding on each side.
                assert abs(after.event.price - before.event.price) + 0.01 >= 8 * 0.0008 * before.event.price
                assert after.truths[0].entity == symbol
                seen += 1
    assert seen >= 5


def test_a_v_shape_falls_trade_by_trade_and_then_rises(trades: list[Simulated]) -> None:
    shapes = by_truth(trades, "v_shape")
    assert len(shapes) >= 5
    for shape in shapes:
        prices = [event.event.price for event in shape]
        half = len(prices) // 2
        assert all(a > b for a, b in pairwise(prices[:half]))
        assert all(a < b for a, b in pairwise(prices[half - 1 :]))


def test_a_volume_burst_is_trades_in_a_row_of_twenty_times_the_size(trades: list[Simulated]) -> None:
    ordinary = mean(event.event.size for event in trades if not event.truths)
    bursts = [event.event.size for burst in by_truth(trades, "volume_burst") for event in burst]
    assert 16 < mean(bursts) / ordinary < 24


def test_volatility_comes_in_clusters_and_prices_stay_in_range() -> None:
    trades = run(STOCKS, 40_000, seed=6, symbols=2, symbol_skew=0, scenario_rate=0)
    series = [event.event.price for event in trades if event.key == "S0000"]
    steps = [(b - a) / a for a, b in pairwise(series)]
    # Unconditional deviation of the GARCH law is one step of 0.0008, within 15 %.
    assert 0.85 < pvariance(steps) ** 0.5 / 0.0008 < 1.15
    squares = [step * step for step in steps]
    middle = mean(squares)
    near = mean((a - middle) * (b - middle) for a, b in pairwise(squares)) / pvariance(squares)
    assert near > 0.05
    assert min(series) > series[0] / 4
    assert max(series) < series[0] * 4


@pytest.fixture(scope="module")
def requests() -> list[Simulated]:
    return run(WEBLOGS, 40_000, seed=4, attack_rate=2, event_rate=500)


def test_logins_are_forced_from_one_address_within_half_a_minute(requests: list[Simulated]) -> None:
    for kind, users in (("brute_force", 1), ("password_spray", None)):
        attacks = by_truth(requests, kind)
        assert len(attacks) >= 5
        for attack in attacks:
            assert attack[-1].event_time_ms - attack[0].event_time_ms < 30_000
            assert len({event.key for event in attack}) == 1
            assert {event.event.path for event in attack} == {"/login"}
            failed = [event for event in attack if event.event.status == 401]
            assert 20 <= len(failed) <= 40
            names = len({event.event.user for event in attack})
            assert names == (users or len(attack))
            assert (attack[-1].event.status == 302) == attack[0].truths[0].detail["breached"]


def test_a_scan_asks_for_many_different_paths_that_do_not_exist(requests: list[Simulated]) -> None:
    for attack in by_truth(requests, "scan"):
        assert len({event.event.path for event in attack}) == len(attack) >= 30
        assert {event.event.status for event in attack} == {404}
        assert attack[-1].event_time_ms - attack[0].event_time_ms < 30_000


def test_data_is_carried_off_in_exports_that_nobody_else_makes(requests: list[Simulated]) -> None:
    exports = [event for event in requests if event.event.path == "/account/export"]
    assert exports
    assert all(event.event.bytes_sent >= 20_000_000 for event in exports)
    assert {truth.kind for event in exports for truth in event.truths} == {"exfiltration"}
    assert max(event.event.bytes_sent for event in requests if not event.truths) < 5_000_000


def test_no_ordinary_client_has_an_address_of_an_intruder(requests: list[Simulated]) -> None:
    assert all((bool(event.truths)) == event.key.startswith("198.1") for event in requests)


def test_ordinary_answers_have_their_shares() -> None:
    requests = run(WEBLOGS, 40_000, seed=4, attack_rate=0)
    shares = Counter(event.event.status for event in requests)
    expected = {404: 0.0097, 500: 0.0029, 304: 0.133, 401: 0.0024, 302: 0.0276}
    for status, share in expected.items():
        # Five standard errors of a share among 40,000.
        assert abs(shares[status] / 40_000 - share) < 5 * (share / 40_000) ** 0.5


def orders(events: Iterable[Simulated]) -> dict[str, list[Simulated]]:
    found: defaultdict[str, list[Simulated]] = defaultdict(list)
    for event in events:
        found[event.key].append(event)
    return found


def test_an_ordinary_order_takes_all_steps_in_their_order_or_is_cancelled() -> None:
    found = orders(run(ORDERS, 30_000, seed=4, acceleration=36_000, deviation_rate=100))
    names = list(STEPS)
    cancelled = delivered = 0
    for steps in list(found.values())[:2_000]:
        if steps[0].truths:
            continue
        got = [event.event.step for event in steps]
        if got[-1] == "cancelled":
            cancelled += 1
            assert got[:-1] == names[: len(got) - 1]
            assert "shipped" not in got
        else:
            delivered += 1
            assert got == names
    # 3 % of 1,800, within five standard errors.
    assert abs(cancelled / (cancelled + delivered) - 0.03) < 5 * (0.03 / 1_800) ** 0.5


def test_each_way_to_go_wrong_shows_in_the_steps() -> None:
    events = run(ORDERS, 30_000, seed=4, acceleration=36_000, deviation_rate=100)
    names = list(STEPS)
    for kind in ORDERS.scenarios:
        wrong = by_truth(events, kind)
        assert len(wrong) >= 20
        for steps in wrong:
            got = [event.event.step for event in steps]
            detail = steps[0].truths[0].detail
            at = got.index(detail["step"]) if detail["step"] in got else None
            if kind == "stuck":
                assert got == names
                assert at is not None
                took = steps[at].event_time_ms - steps[at - 1].event_time_ms
                assert took > OVERDUE * STEPS[detail["step"]] * 100
            elif kind == "abandoned":
                assert got == names[: len(got)]
                assert len(got) < len(names)
            elif kind == "step_skipped":
                assert at is None
                assert len(got) == len(names) - 1
            elif kind == "steps_swapped":
                assert at is not None
                assert got[at - 1] == detail["before"]
                assert sorted(got) == sorted(names)
            else:
                assert got.count("paid") == 2


def test_an_order_that_does_not_deviate_is_the_same_whether_others_do() -> None:
    quiet = orders(run(ORDERS, 6_000, seed=4, acceleration=36_000, deviation_rate=0))
    wild = orders(run(ORDERS, 6_000, seed=4, acceleration=36_000, deviation_rate=300))
    same = [key for key in list(wild)[:500] if not wild[key][0].truths]
    assert len(same) > 200
    for key in same:
        # Cut where the shorter run ends: deviations add events, so that fewer orders fit in.
        pairs = zip(wild[key], quiet[key], strict=False)
        assert all(one.event == other.event for one, other in pairs)


def test_the_number_of_orders_under_way_stays_level() -> None:
    warehouse = Warehouse(OrdersProfile(seed=1, acceleration=36_000, deviation_rate=100))
    stream, open_orders = warehouse.events(), []
    for _ in range(6):
        deque(islice(stream, 5_000), maxlen=0)
        open_orders.append(warehouse.open_orders)
    # 167 orders a second, 4.1 s (38 h · e^(0.4²/2) / 36,000) each on average.
    assert all(500 < size < 900 for size in open_orders[1:]), open_orders


def test_zipf_draws_follow_their_law() -> None:
    zipf = Zipf(10, 1.0)
    counts = Counter(zipf.draw((i + 0.5) / 10_000) for i in range(10_000))
    harmonic = sum(1 / k for k in range(1, 11))
    for k in range(10):
        assert abs(counts[k] / 10_000 - 1 / (k + 1) / harmonic) < 0.0002


@pytest.mark.parametrize(
    ("domain", "flaw", "says"),
    [
        (STOCKS, {"symbols": 0}, "symbols is a count"),
        (STOCKS, {"symbol_skew": 6}, "symbol skew"),
        (STOCKS, {"scenario_rate": -1}, "scenario rate"),
        (WEBLOGS, {"clients": 0}, "clients is a count"),
        (WEBLOGS, {"client_skew": -1}, "client skew"),
        (WEBLOGS, {"attack_rate": 11}, "attack rate"),
        (ORDERS, {"warehouses": 0}, "warehouses is a count"),
        (ORDERS, {"acceleration": 0}, "acceleration"),
        (ORDERS, {"deviation_rate": 1_001}, "deviation rate"),
    ],
)
def test_a_parameter_out_of_range_is_named(domain: Domain, flaw: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        domain.profile(**flaw)
