"""Streams of the world of payments that tests of other things send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millrace_apps.generators.engine import Generated, deliver_domain
from millrace_apps.generators.fraud import DOMAIN, FraudProfile


def transactions_of(profile: FraudProfile) -> Iterator[Generated]:
    """Yield the messages of the transactions alone, in order of sending, with what is wrong among them."""
    return deliver_domain(DOMAIN, replace(profile, label_scale=0.0, authorised=0.0))
