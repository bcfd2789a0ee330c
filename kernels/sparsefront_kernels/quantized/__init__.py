"""Low precision: quantization of activations and weights, and products of the results."""
