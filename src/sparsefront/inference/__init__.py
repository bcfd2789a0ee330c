"""From an exported checkpoint to a network that calls kernels; every choice is recorded, with why other kernels were not used."""
