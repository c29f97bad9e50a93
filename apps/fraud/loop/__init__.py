"""A world in which decisions have effects: who is blocked moves on, and what is blocked is never told."""
