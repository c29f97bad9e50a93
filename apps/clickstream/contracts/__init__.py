"""Contracts of the app: a type for each event, and for each row of a table."""
