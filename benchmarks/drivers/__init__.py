"""Drivers of benchmarks: programs that a benchmark starts as processes of their own."""
