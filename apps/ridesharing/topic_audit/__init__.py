"""The audit from the topics: what the app has said, held against what came in, and no book of its own."""
