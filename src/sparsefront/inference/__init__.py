"""From an exported checkpoint to a network that calls kernels, with every choice and every refusal on record."""
