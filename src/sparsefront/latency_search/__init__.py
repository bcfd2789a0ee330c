"""Measurements for a latency search: times and errors of every choice, and of whole assignments."""
