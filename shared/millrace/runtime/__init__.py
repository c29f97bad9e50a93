"""The runtime of apps: settings, sessions, jobs, their clocks and their monitor."""
