"""`gathered_sm90`: 16-bit products on Hopper's tensor cores."""
