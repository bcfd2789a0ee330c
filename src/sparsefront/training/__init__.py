"""Training with Lightning: recipes, optimizers, learning-rate curves, and single fits."""
