"""Low precision: the rule that quantises activations and weights, and products of what it gives."""
