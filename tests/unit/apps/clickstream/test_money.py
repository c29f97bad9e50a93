"""What sums of other currencies are worth, by files of rates."""

from __future__ import annotations

import random
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from millrace_apps.clickstream import demo
from millrace_apps.clickstream.processes.money import (
    RATE_PARTS,
    RateEntry,
    Rates,
    RatesError,
    rates_of,
    read_rates,
    worth,
)
from millrace_apps.clickstream.processes.rules import UnknownRules
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.generators.clickstream import RATES

DAY = 86_400_000
BANK = "Date,USD,JPY,GBP,\n2026-01-02,1.25,N/A,0.8,\n2026-01-01,1.20,160.0,0.8,\n"


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def test_a_rate_holds_from_its_day_on_until_the_next_one(tmp_path: Path) -> None:
    text = (
        "- {currency: GBP, since: 1970-01-03, rate: 1.5}\n- {currency: GBP, since: 1970-01-02, rate: 1.2}\n"
    )
    found = read_rates(written(tmp_path, "rates.yaml", text))
    moments = (DAY - 1, DAY, 2 * DAY - 1, 2 * DAY, 900 * DAY)
    assert [found.worth(1_000, "GBP", at) for at in moments] == [None, 1_200, 1_200, 1_500, 1_500]
    assert [found.worth(1_000, own, 0) for own in (None, "", "EUR", "USD")] == [1_000, 1_000, 1_000, None]


def test_rates_are_read_from_json_too(tmp_path: Path) -> None:
    path = written(tmp_path, "rates.json", '[{"currency": "GBP", "since": "1970-01-01", "rate": 2}]')
    assert read_rates(path, "USD").worth(100, "GBP", 0) == 200


def test_the_banks_history_is_how_many_of_each_are_worth_a_euro(tmp_path: Path) -> None:
    found = read_rates(written(tmp_path, "eurofxref-hist.csv", BANK))
    at = 20_454 * DAY  # 2026-01-01
    assert [found.worth(1_000, name, at) for name in ("USD", "JPY", "GBP")] == [833, 6, 1_250]
    assert found.worth(1_000, "USD", at + DAY) == 800
    assert found.worth(100_000, "JPY", at + DAY) == 625  # the newest that is known


def test_a_shop_whose_currency_is_not_the_banks_has_its_rates_by_way_of_the_euro(tmp_path: Path) -> None:
    found = read_rates(written(tmp_path, "hist.csv", BANK), "USD")
    at = 20_455 * DAY
    assert [found.worth(1_000, name, at) for name in ("EUR", "GBP", "USD")] == [1_250, 1_563, 1_000]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("r.yaml", "- {currency: gbp, since: 2026-01-01, rate: 1}", "currency"),
        ("r.yaml", "- {currency: GBP, since: 2026-01-01, rate: 0}", "rate"),
        ("r.yaml", "- {currency: GBP, since: soon, rate: 1}", "date"),
        ("r.yaml", "- {currency: GBP, since: 2026-01-01, rate: 1, until: 2027-01-01}", "until"),
        ("r.yaml", "- {currency: EUR, since: 2026-01-01, rate: 1}", "own currency"),
        (
            "r.yaml",
            "- {currency: GBP, since: 2026-01-01, rate: 1}\n" * 2,
            "two rates of GBP since 2026-01-01",
        ),
        ("r.json", "{", "r.json"),
        ("r.csv", "Day,USD\n2026-01-01,1\n", "no column Date"),
        ("r.csv", "Date,USD\n2026-01-01,much\n", "line 2"),
        ("r.csv", "Date,USD\n2026-01-01,0\n", "line 2"),
        ("r.csv", "Date,US\n2026-01-01,1\n", "line 2"),
    ],
)
def test_rates_that_cannot_be_understood_are_refused_with_the_place(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(RatesError, match=said) as told:
        read_rates(written(tmp_path, name, text))
    assert name in str(told.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RatesError, match=r"gone\.yaml cannot be read: No such file"):
        read_rates(tmp_path / "gone.yaml")


def test_worth_is_that_of_decimal_numbers_halves_away_from_zero() -> None:
    rng = random.Random(3)
    for _ in range(5_000):
        cents, rate = rng.randint(-(10**9), 10**9), rng.choice((rng.randrange(1, 10**10), RATE_PARTS // 2))
        exact = Decimal(cents) * rate / RATE_PARTS
        assert worth(cents, rate) == int(exact.quantize(Decimal(1), ROUND_HALF_UP))


def test_of_many_rates_the_newest_until_then_holds() -> None:
    rng = random.Random(5)
    days = rng.sample(range(1, 2_000), 300)
    entries = [RateEntry("GBP", date(1970, 1, 1) + timedelta(days=day), day / 1_000) for day in days]
    found = rates_of("EUR", entries)
    for at in (rng.randrange(2_100 * DAY) for _ in range(1_000)):
        until = [day for day in days if day * DAY <= at]
        assert found.rate("GBP", at) == (max(until) * RATE_PARTS // 1_000 if until else None)


def test_the_settings_name_currency_rates_and_zone(tmp_path: Path) -> None:
    path = written(tmp_path, "rates.yaml", "- {currency: EUR, since: 1970-01-01, rate: 1.5}")
    orders = {"currency": "USD", "rates": path, "zone": "Europe/Berlin"}
    settings = ClickstreamSettings.model_validate({"orders": orders})
    assert settings.rates().worth(100, "EUR", 0) == 150
    assert settings.visitor_rules().rates == settings.rates()
    assert ClickstreamSettings().rates() == Rates("EUR")
    wrong = ClickstreamSettings.model_validate({"orders": {"zone": "Europe/Atlantis"}})
    with pytest.raises(UnknownRules, match="Atlantis"):
        wrong.orders_process()


def test_the_rates_of_the_demo_are_those_of_the_generator() -> None:
    found = read_rates(demo.RATES)
    at = round(1.767e12)
    assert {name: found.rate(name, at) for name in found.known} == {
        name: int(Decimal(rate) * RATE_PARTS) for name, rate in RATES.items()
    }
