"""Surge: a price multiplier per cell that follows how many ask and how many cars are free."""
