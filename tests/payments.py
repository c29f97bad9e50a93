"""Streams of the world of payments that tests of other things send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from millrace_apps.generators.engine import Generated, deliver_domain
from millrace_apps.generators.fraud import DOMAIN, FraudProfile


def transactions_of(profile: FraudProfile) -> Iterator[Generated]:
    """Yield the messages of the transactions alone, in order of sending, with what is wrong among them."""
    return deliver_domain(DOMAIN, replace(profile, label_scale=0.0, authorised=0.0))


#: What a transaction has of every sender.
PLAIN = (
    "transaction_id", "card_id", "terminal_id", "mcc", "country", "amount", "currency", "kind",
    "event_time_ms",
)  # fmt: skip


def plain_transactions_of(profile: FraudProfile) -> Iterator[Generated]:
    """Yield the same messages with what every sender tells, in euros: for oracles that know no more."""
    for message in transactions_of(profile):
        try:
            whole = json.loads(message.value)
        except ValueError:
            yield message
            continue
        if isinstance(whole, dict) and whole.get("billing_amount") is not None:
            whole |= {"amount": whole["billing_amount"], "currency": whole["billing_currency"]}
        if isinstance(whole, dict) and set(PLAIN) <= whole.keys():
            message.value = json.dumps({name: whole[name] for name in PLAIN}).encode()
        yield message
