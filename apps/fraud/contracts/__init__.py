"""What comes in and goes out: a type for each event, and for each row of a table."""
