"""The stages of a run. Each reads what the previous one stored, and stores its own result under its cache key."""
