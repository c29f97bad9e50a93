"""How an app's topology runs on Spark: as a station or as a chain."""

from __future__ import annotations

from millrace.host.spark_input import Plan
from millrace.runtime.settings import AppSettings


def plan_of(settings: AppSettings) -> Plan:
    """Return the plan of an app."""
    return "chain" if settings.stream.plan == "auto" else settings.stream.plan
