"""Data sets for training and evaluation: one file each, with a frozen settings dataclass."""
