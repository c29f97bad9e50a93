"""The cost of looking for card numbers, µs of processor time a record.

``python -m millrace_apps.benchmarks.privacy`` prints it.
"""

from __future__ import annotations

import time

import pyarrow as pa

from millrace.privacy.keys import TokenKey, TokenRing
from millrace.privacy.masking import Masker

_RECORDS = 20_000
_NUMBERS = ("4111111111111111", "5500005555555559", "378282246310005", "6011111111111117")


def record(number: int, card: str) -> bytes:
    """Return a payment of about 410 bytes."""
    return (
        f'{{"transaction_id":"5e1c-{number:010}","card_id":"{card}","terminal_id":"term-000123","mcc":"5411",'
        f'"country":"DE","amount":12.34,"currency":"EUR","kind":"purchase",'
        f'"event_time_ms":{1_767_225_600_000 + number * 137},"customer_id":"cust-{number:07}",'
        '"account_id":"acc-0001234","merchant_id":"m-00231","channel":"online","latitude":52.520008,'
        '"longitude":13.404954,"device_id":"dev-0003423","ip":"10.23.45.67","address_id":"addr-0234234"}'
    ).encode()


def _seconds(masker: Masker, records: list[bytes], column: pa.Array) -> float:
    """Return the processor's time that records take."""
    begun = time.process_time()
    masker.messages(records, column)
    return time.process_time() - begun


def main() -> None:
    """Print what a record takes, by what stands in its card field."""
    ring = TokenRing([TokenKey(b"0" * 32, "0a0b0c0d")])
    masker = Masker(ring.token, {"card_id": "card", "transaction_id": "kept", "event_time_ms": "number"})
    cards = {
        "no number": ["card-0000007"],
        "tokens": [ring.token(number) for number in _NUMBERS],
        "numbers": list(_NUMBERS),
        "numbers with blanks": [" ".join((n[:4], n[4:8], n[8:12], n[12:])) for n in _NUMBERS],
        "no number, an escape": ["card\\/7"],
        "no number, an umlaut": ["Käte"],
    }
    for name, of_kind in cards.items():
        records = [record(at, of_kind[at % len(of_kind)]) for at in range(_RECORDS)]
        column = pa.array(records, pa.binary())
        took = min(_seconds(masker, records, column) for _ in range(3)) / _RECORDS
        print(f"{name:<24} {took * 1e6:6.2f} µs of {len(records[0])} bytes  {1 / took:12,.0f} records/s")


if __name__ == "__main__":
    main()
