"""The cache folder in a user's hands: what takes how much room, what may go, what is damaged. `python -m sparsefront.cache`."""
