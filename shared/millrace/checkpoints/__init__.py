"""State as data: checkpoints that are read, kept as savepoints, and written anew in another shape."""
