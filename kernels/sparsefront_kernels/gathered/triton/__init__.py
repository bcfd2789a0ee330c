"""`gathered_triton` and `gathered_tf32_triton`: products on any GPU that Triton compiles for."""
