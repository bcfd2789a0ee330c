"""Measurements become one result; results become a table, a plot, a page and a mirror in W&B."""
