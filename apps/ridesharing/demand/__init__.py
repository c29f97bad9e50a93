"""Demand foreseen: how many requests a cell will have in the next quarter of an hour."""
