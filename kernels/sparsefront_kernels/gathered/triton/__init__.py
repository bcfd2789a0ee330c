"""`gathered_triton` and `gathered_triton_tf32`: products on any GPU that Triton compiles for."""
