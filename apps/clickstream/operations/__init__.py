"""Operators' commands, and what these stand on."""
