"""Blocks of weights that live or die together (BSR)."""
