"""State types: what is kept of a key between its events."""
