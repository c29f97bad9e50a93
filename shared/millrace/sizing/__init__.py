"""Sizing: a small model of batches and pages, and the measured costs behind it."""
