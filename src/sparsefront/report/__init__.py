"""Measurements become one row; rows become a table, a plot, a page and a mirror in W&B."""
