"""Benchmarks behind `millrace bench …`; figures stand in docs/performance.md."""
