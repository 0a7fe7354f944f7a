"""Measurements of dsedge, and of other engines side by side with it. See README.md; no test asserts a time."""
