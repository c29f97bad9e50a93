"""Recipes: one short, runnable file per concept; ``millrace recipe list`` names them."""
