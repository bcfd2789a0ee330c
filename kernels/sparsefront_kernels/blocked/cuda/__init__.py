"""The blocked kernel on Hopper's tensor cores."""
