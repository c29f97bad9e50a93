"""Features from the history of a payment's customer and terminal, the Handbook's 14 among them."""
