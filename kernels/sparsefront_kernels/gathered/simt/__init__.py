"""`gathered_simt`: float32 products on Hopper's CUDA cores."""
