"""Save and load pruned networks: plain weights that any tool loads, plus masks and compressed layers."""
