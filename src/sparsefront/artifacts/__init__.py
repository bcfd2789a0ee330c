"""Finished stages on disk, found again by their cache keys."""
