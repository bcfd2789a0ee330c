"""`gathered_indexed`: float32 products of narrow tiles on Hopper's CUDA cores."""
