"""What must not be kept, and what must be got rid of: card numbers, and all that is known of somebody."""
