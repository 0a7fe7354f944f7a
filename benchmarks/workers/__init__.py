"""Processes that a benchmark starts, each with its own interpreter; they import nothing of each other's engine."""
