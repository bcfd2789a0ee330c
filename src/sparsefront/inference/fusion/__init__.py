"""Layout through the model: encoder blocks whose products, norms and residuals hand each other feature-major tensors."""
