"""The learned score: features to numbers, training, registry, scoring, and how good it is."""
