"""Alarms: rules, their conditions with delays and dead-bands, and the life of an alarm."""
