"""Terminal output: the live view, tables, checks."""
