"""How accuracy comes back after pruning: what is trained, for how long, along which learning-rate curve."""
