"""Trouble on purpose: what an app makes of what nobody should send, counted to the last event."""
