"""Money of several currencies: what a sum is worth in the shop's own, by rates that are data.

A file of rates is JSON or YAML, a list in which each entry holds from its day on::

    - {currency: GBP, since: 2026-01-01, rate: 1.15}    # a pound is worth 1.15 of the shop's currency
    - {currency: GBP, since: 2026-02-01, rate: 1.17}

or the history of the European Central Bank's reference rates as it is published (``eurofxref-hist.csv``: a
``Date`` and a column per currency, of which so many are worth a euro).

Sums are whole hundredths of their currency ("cents"), whatever it calls them. A rate is kept as whole
hundred-millionths, so that the same sum is worth the same everywhere.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError

#: A rate is kept in so many parts of one.
RATE_PARTS: Final = 100_000_000
_EURO: Final = "EUR"

Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$")]


class RatesError(UserError):
    """Rates that cannot be read or understood."""


class RateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a unit of a currency is worth from a day on.

    Attributes:
        currency: ISO 4217.
        since: The day, which begins at midnight UTC.
        rate: In the shop's currency.
    """

    currency: Currency
    since: date
    rate: Annotated[float, Meta(gt=0, le=1_000_000)]


@dataclass(frozen=True)
class Rates:
    """What currencies are worth in the shop's own, and since when.

    Attributes:
        shop: The shop's currency, ISO 4217.
        known: Currency → since when (UTC ms, ascending) → what a unit is worth, in parts of
            :data:`RATE_PARTS`.

    Example:
        >>> rates = rates_of("EUR", [RateEntry("GBP", date(1970, 1, 1), 1.15)])
        >>> rates.worth(1_000, "GBP", at_ms=5), rates.worth(1_000, "EUR", at_ms=5)
        (1150, 1000)
        >>> print(rates.worth(1_000, "USD", at_ms=5), rates.worth(1_000, "GBP", at_ms=-1))
        None None
    """

    shop: str = _EURO
    known: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def rate(self, currency: str | None, at_ms: int) -> int | None:
        """Return what a unit of a currency was worth, in parts of :data:`RATE_PARTS`.

        Args:
            currency: The currency; empty for the shop's own.
            at_ms: The moment, UTC ms.

        Returns:
            ``None`` where it is not known.
        """
        if not currency or currency == self.shop:
            return RATE_PARTS
        since, rates = self.known.get(currency, ((), ()))
        place = bisect_right(since, at_ms)
        return rates[place - 1] if place else None

    def worth(self, cents: int, currency: str | None, at_ms: int) -> int | None:
        """Return what a sum was worth in the shop's currency, hundredths; ``None`` where no rate is known.

        Args:
            cents: The sum, hundredths of its currency.
            currency: Its currency; empty for the shop's own.
            at_ms: The moment, UTC ms.
        """
        rate = self.rate(currency, at_ms)
        return None if rate is None else worth(cents, rate)


def worth(cents: int, rate: int) -> int:
    """Return a sum at a rate, hundredths; halves away from zero.

    Args:
        cents: The sum.
        rate: What one is worth, in parts of :data:`RATE_PARTS`.

    Example:
        >>> worth(333, 50_000_000), worth(-333, 50_000_000)
        (167, -167)
    """
    sign = -1 if cents < 0 else 1
    return sign * ((2 * abs(cents) * rate + RATE_PARTS) // (2 * RATE_PARTS))


def rates_of(shop: str, entries: Iterable[RateEntry]) -> Rates:
    """Return rates by their entries.

    Args:
        shop: The shop's currency, ISO 4217.
        entries: What currencies are worth in it.

    Raises:
        RatesError: Two entries of one currency are of one day, or one is of the shop's own currency.
    """
    by: dict[str, dict[int, int]] = {}
    for entry in entries:
        if entry.currency == shop:
            raise RatesError(f"a rate of {shop}, which is the shop's own currency")
        since = _midnight(entry.since)
        if since in by.setdefault(entry.currency, {}):
            raise RatesError(f"two rates of {entry.currency} since {entry.since}")
        by[entry.currency][since] = round(entry.rate * RATE_PARTS)
    return Rates(
        shop, {name: (tuple(sorted(own)), tuple(own[at] for at in sorted(own))) for name, own in by.items()}
    )


def read_rates(path: Path, shop: str = _EURO) -> Rates:
    """Read rates from a file: JSON, YAML, or the European Central Bank's CSV.

    Args:
        path: The file.
        shop: The shop's currency, ISO 4217.

    Raises:
        RatesError: It cannot be read or understood; the message says where.
    """
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as lines:
                return rates_of(shop, _of_the_bank(list(csv.DictReader(lines)), shop))
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.yaml.decode
        return rates_of(shop, decode(path.read_bytes(), type=tuple[RateEntry, ...]))
    except OSError as error:
        raise RatesError(f"{path} cannot be read: {error.strerror}") from error
    except (*NOT_JSON, csv.Error, RatesError) as error:
        raise RatesError(f"{path}: {error}") from error


def _of_the_bank(rows: list[dict[str, Any]], shop: str) -> Iterable[RateEntry]:
    """Yield what currencies are worth by a table of how many of each are worth a euro."""
    for number, row in enumerate(rows, 2):
        try:
            since = date.fromisoformat(row["Date"])
            per_euro = {_EURO: 1.0} | {
                name.strip(): float(text)
                for name, text in row.items()
                if name and name.strip() and name != "Date" and text not in (None, "", "N/A")
            }
            own = per_euro.get(shop)
            if own is None:
                continue
            found = {name: own / many for name, many in per_euro.items() if name != shop}
            yield from msgspec.convert(
                [{"currency": name, "since": since, "rate": rate} for name, rate in found.items()],
                list[RateEntry],
            )
        except KeyError as error:
            raise RatesError("it has no column Date") from error
        except (ValueError, ZeroDivisionError, TypeError) as error:
            raise RatesError(f"line {number}: {error}") from error


def _midnight(day: date) -> int:
    return round(datetime.combine(day, time(), UTC).timestamp() * 1_000)
