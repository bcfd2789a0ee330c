"""Weights kept one by one (compressed sparse rows)."""
