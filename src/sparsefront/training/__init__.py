"""Training with Lightning: the recipe of a model x dataset pair, its optimizer and learning-rate curve, one fit."""
