"""What the kernels are compared with: a module per library, with its providers and why it does not run somewhere."""
