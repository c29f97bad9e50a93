"""Condition monitoring for fleets of machines: status as of event time, alarms, liveness, KPIs."""
