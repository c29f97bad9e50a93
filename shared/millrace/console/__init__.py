"""What is shown in a terminal: the live view, tables, checks."""
