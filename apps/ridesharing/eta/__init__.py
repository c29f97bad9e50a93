"""Arrival times: what trips have taken between places, a model on top of it, and how sure both are."""
