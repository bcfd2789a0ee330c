"""`gathered_cuda`: 16-bit products on Hopper's tensor cores."""
