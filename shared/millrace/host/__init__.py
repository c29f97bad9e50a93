"""Hosts of processes: the runner that says what a batch means, in memory and on Spark."""
