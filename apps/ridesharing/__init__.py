"""Ridesharing: riders and drivers matched in short windows, and nothing dispatched twice."""
