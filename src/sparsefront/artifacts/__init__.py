"""Finished stages on disk, found again by everything that determines them."""
