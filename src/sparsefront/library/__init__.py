"""The library: plain functions on a network, its tensors and its batches. No Hydra, no experiment; see docs/library.md."""
