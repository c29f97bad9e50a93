"""`millrace generate fraud`, run from the values of its options."""

from __future__ import annotations

import time
from typing import Any

from millrace.time.durations import to_ms
from millrace_apps.generators.command import Job, carry_out, found_bookmark
from millrace_apps.generators.fraud import DOMAIN, SCHEMA_VERSION, TOPIC, FraudProfile, fraud_events
from millrace_apps.generators.ledger import LedgerWriter
from millrace_apps.generators.timing import resolve_timing


def generate(values: dict[str, Any]) -> None:
    """Run the command.

    Args:
        values: Option → value, presets applied.
    """
    bookmark = found_bookmark(values["ledger"], values["to"].value, resume=values["resume"])
    timing = resolve_timing(
        **{name: values[name] for name in ("rate", "speed", "event_rate", "duration", "events", "start")},
        live=values["live"],
        resumed_start_ms=bookmark.parameters["start_ms"] if bookmark else None,
        now_ms=time.time_ns() // 1_000_000,
    )
    same = ("seed", "disorder_ms", "late", "duplicates", "malformed")
    own = ("cards", "terminals", "card_skew", "fraud_rate", "label_scale")
    transactions, labels = values["topic"] or TOPIC, values["labels_topic"]
    profile = FraudProfile(
        events=timing.events,
        event_rate=timing.event_rate,
        start_ms=timing.start_ms,
        lateness_ms=to_ms(values["lateness"]),
        **{name: values[name] for name in (*same, *own)},
    )
    parameters = profile.parameters()
    topics = {"transactions": transactions, **({"labels": labels} if profile.label_scale else {})}
    job = Job(
        domain=DOMAIN,
        stream=fraud_events(profile, labels),
        parameters=parameters,
        events=profile.events,
        open_ledger=lambda path, resume: LedgerWriter(
            path,
            domain=DOMAIN,
            seed=profile.seed,
            schema_version=SCHEMA_VERSION,
            parameters=parameters,
            resume=resume,
        ),
    )
    carry_out(job, values, timing, topics, bookmark)
