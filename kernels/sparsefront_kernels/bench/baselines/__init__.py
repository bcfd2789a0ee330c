"""Baselines: one module per library, with its providers and the reasons why it is unsupported."""
