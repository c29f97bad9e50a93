"""What runs, and how it does: a record of each job, its figures, its metrics, its log."""
