"""Building blocks of masks: groups of weights, their selection by score, and permutations."""
