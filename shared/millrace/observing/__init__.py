"""Observability of jobs: a record of each, its figures, its metrics, its log."""
