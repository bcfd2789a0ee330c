"""Blocks of weights that live or die together and of which every four inputs keep two."""
