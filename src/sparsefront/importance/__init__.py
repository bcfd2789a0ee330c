"""Importance: how much each weight is worth keeping."""
