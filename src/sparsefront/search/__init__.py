"""Hyperparameter search with Optuna, in a study that several processes share and that survives killed processes."""
