"""Privacy: tokens in place of card numbers, and erasure of a person."""
