"""The case work: alerts become cases, people dispose of them, labels follow; an app of its own."""
