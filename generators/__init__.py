"""Seeded streams that behave like the real ones, each with a ledger of what was put into it."""
