"""SQL over what the apps have written: their tables by name, with what waits to be merged into them."""
