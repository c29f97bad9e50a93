"""What is kept of a key between its events."""
