"""The stages of a run. Each reads what the one before stored, and stores its own result under its cache key."""
