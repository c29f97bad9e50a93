"""Holding the fraud app to recorded payments whose frauds are known."""
