"""One file per model: its settings, how it is built, which of its layers may be pruned."""
