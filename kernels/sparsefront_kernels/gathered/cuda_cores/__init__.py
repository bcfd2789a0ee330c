"""`gathered_fp32_cuda`: float32 products on Hopper's CUDA cores."""
